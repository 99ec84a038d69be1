"""What kopf watches, told to the store; each change names the jobs to look at again.

kopf does not report objects that vanished while a watch was down, so lists correct the store from time to time. And a
decision needs all kinds: the first lists come before the first decision.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import kopf
import structlog

from rljob_operator.kube.client import Kube, Listing
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
    settings.networking.error_backoffs = _Forever()
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

    A namespace that may not be read keeps what is known of it, and nothing is decided there until all of it has been
    listed: its Role may be late, gone for a moment, or gone for ever with it. Raises Forbidden where none may be read.
    """
    new, refusals = set[Key](), dict[str, Forbidden]()
    for namespace in namespaces or (None,):
        try:
            new |= await _list(kube, store, namespace)
        except Forbidden as error:
            if namespace is None or error.status == HTTPStatus.UNAUTHORIZED:  # that is about us, not about a namespace
                raise
            refusals[namespace] = error
            if namespace not in store.unreadable:
                store.unreadable.add(namespace)
                log.warning("namespace_not_readable", namespace=namespace, error=error.message)
    if refusals and refusals.keys() == {*namespaces}:
        raise _none_readable(refusals)
    readable_again, store.unreadable = store.unreadable - refusals.keys(), {*refusals}
    for namespace in sorted(readable_again):
        log.info("namespace_readable_again", namespace=namespace)
    return new | {key for key in store.all(RLJOB) if key.namespace in readable_again}


async def _list(kube: Kube, store: Store, namespace: str | None) -> set[Key]:
    """All kinds side by side: while the API server writes one page, we read another. Of some alone the store hears
    nothing, for jobs that these made news of would not be named where the next list fails.
    """
    asked = [asyncio.create_task(_listing(kube, kind, namespace)) for kind in WATCHED]
    try:
        listings = await asyncio.gather(*asked)
    finally:
        for each in asked:
            each.cancel()
    found = zip(WATCHED, listings, strict=True)
    changed = [store.replace_all(kind, each.items, each.resource_version, namespace) for kind, each in found]
    return set[Key]().union(*changed)


async def _listing(kube: Kube, kind: Kind, namespace: str | None) -> Listing:
    try:
        return await kube.list(kind, namespace, None if kind == RLJOB else JOB_LABEL)
    except NotFound as error:
        raise NotFound(f"there are no {kind.plural} of {kind.api_version} yet: install their CRD") from error


def _none_readable(refusals: Mapping[str, Forbidden]) -> Forbidden:
    first = next(iter(refusals.values()))
    words = f"none of the namespaces {', '.join(refusals)} is readable: {first.message}"
    return Forbidden(words, status=first.status, reason=first.reason)


class _NoDiffs(kopf.AnnotationsDiffBaseStorage):
    """kopf compares each object with its last state, for handlers of changes. We have none, so it need not copy it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})


class _Forever:
    """Seconds between two tries. What kopf has tried for the last time it watches no more, however long it lives: a
    minute without a Role, or of an API server that answers 503, would be one too many.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 2.0, 5.0, 10.0, 20.0), itertools.repeat(60.0))


def _handler(kind: Kind, store: Store, changed: Changed) -> Callable[..., Any]:
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, **event["object"]}
        changed(store.remove(kind, manifest) if event["type"] == "DELETED" else store.put(kind, manifest))

    return handle
