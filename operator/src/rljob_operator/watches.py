"""What kopf watches, told to the store; each change names the jobs to look at again.

kopf does not report objects that vanished while a watch was down, so lists correct the store from time to time. And a
decision needs all kinds: the first lists come before the first decision.
"""

from collections.abc import Callable, Sequence
from typing import Any

import kopf
import structlog

from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import Forbidden, NotFound
from rljob_operator.kube.kinds import POD, RLJOB, Key, Kind
from rljob_operator.names import JOB_LABEL
from rljob_operator.observe import CHILD_KINDS
from rljob_operator.store import Store

log = structlog.get_logger()

WATCHED = (RLJOB, *CHILD_KINDS, POD)

Changed = Callable[[set[Key]], None]


def register(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, store: Store, changed: Changed) -> None:
    """Have kopf watch every kind that a decision rests on; of other kinds than RLJobs, those that carry our label."""
    settings.persistence.diffbase_storage = _NoDiffs()
    for kind in WATCHED:
        group, _, version = kind.api_version.rpartition("/")
        if kind != RLJOB:
            settings.watching.label_selectors[group, version, kind.plural] = JOB_LABEL
        kopf.on.event(group, version, kind.plural, id=kind.plural, registry=registry)(_handler(kind, store, changed))


def login(registry: kopf.OperatorRegistry, connection: Connection) -> None:
    """kopf connects as we do."""

    async def connect(**_: Any) -> kopf.ConnectionInfo:
        found = connection.configuration
        token = await found.get_api_key_with_prefix("BearerToken")
        return kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=token.partition(" ")[0] if token else None,
            token=token.partition(" ")[2] if token else None,
        )

    kopf.on.login(registry=registry)(connect)


async def list_all(kube: Kube, store: Store, namespaces: Sequence[str] = ()) -> set[Key]:
    """Correct the store from lists. Returns the jobs for which something was new. namespaces: empty for all.

    A namespace whose jobs may not be listed counts as empty: its Role goes with it when somebody deletes it.
    """
    new: set[Key] = set()
    readable: Sequence[str | None] = [each for each in namespaces if await _is_readable(kube, each)] or (None,)
    for kind in WATCHED:
        selector = None if kind == RLJOB else JOB_LABEL
        try:
            found = [await kube.list(kind, namespace, selector) for namespace in readable]
        except NotFound as error:
            raise NotFound(f"there are no {kind.plural} of {kind.api_version} yet: install their CRD") from error
        items = [item for listing in found for item in listing.items]
        new |= store.replace_all(kind, items, min((each.resource_version for each in found), key=int))
    return new


async def _is_readable(kube: Kube, namespace: str) -> bool:
    try:
        await kube.list(RLJOB, namespace)
    except Forbidden as error:
        log.warning("namespace_not_readable", namespace=namespace, error=error.message)
        return False
    return True


class _NoDiffs(kopf.AnnotationsDiffBaseStorage):
    """kopf compares each object with its last state, for handlers of changes. We have none, so it need not copy it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})


def _handler(kind: Kind, store: Store, changed: Changed) -> Callable[..., Any]:
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, **event["object"]}
        changed(store.remove(kind, manifest) if event["type"] == "DELETED" else store.put(kind, manifest))

    return handle
