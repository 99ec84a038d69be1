"""Lists of every watched kind, before the first decision and then from time to time.

kopf does not report objects that vanished while a watch was down, so lists correct the store.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus

import structlog

from rljob_operator.kube.client import Kube, Listing
from rljob_operator.kube.errors import Forbidden, NotFound
from rljob_operator.kube.kinds import CLUSTER_WIDE, OPTIONAL, RLJOB, WATCHED, Key, Kind
from rljob_operator.names import JOB_LABEL
from rljob_operator.runtime.store import Store, optional_kinds

log = structlog.get_logger()

AT_ONCE = 2
"""Kinds that are listed side by side."""


async def list_all(kube: Kube, store: Store, news: set[Key], namespaces: Sequence[str] = ()) -> None:
    """Correct the store from lists, and add the jobs of which something was new. namespaces: empty for all.

    If it raises, store and news have what was listed until then, which is not enough for a decision before the first
    complete lists. A namespace that may not be read keeps what is known of it, and nothing is decided there until all
    of it has been listed: its Role may be late, gone for a moment, or deleted with it. Raises Forbidden if no namespace
    may be read. OPTIONAL kinds may be missing: then store.missing has them, each namespace's own.
    """
    refusals = dict[str, Forbidden]()
    missing = dict[str | None, set[Kind]]()
    for namespace in namespaces or (None,):
        try:
            missing[namespace] = await _list(kube, store, news, namespace)
        except Forbidden as error:
            if (
                namespace is None or error.status == HTTPStatus.UNAUTHORIZED
            ):  # about the operator, not about a namespace
                raise
            refusals[namespace] = error
            if namespace not in store.unreadable:
                store.unreadable.add(namespace)
                log.warning("namespace_not_readable", namespace=namespace, error=error.message)
    unread = {kind for kind in CLUSTER_WIDE if not await _list_cluster_wide(kube, store, news, kind)}
    _note_missing(store, news, {**missing, None: missing.get(None, set()) | unread})
    if refusals and refusals.keys() == {*namespaces}:
        raise _none_readable(refusals)
    readable_again, store.unreadable = store.unreadable - refusals.keys(), {*refusals}
    for namespace in sorted(readable_again):
        log.info("namespace_readable_again", namespace=namespace)
    news |= {key for key in store.all(RLJOB) if key.namespace in readable_again}


async def _list_cluster_wide(kube: Kube, store: Store, news: set[Key], kind: Kind) -> bool:
    """Whether it can be read."""
    try:
        found = await kube.list(kind, None, None)
    except (NotFound, Forbidden) as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            raise
        news.update(store.forget(kind))
        return False
    news.update(store.replace_all(kind, found.items, found.resource_version))
    return True


def _note_missing(store: Store, news: set[Key], listed: Mapping[str | None, Iterable[Kind]]) -> None:
    """Jobs are looked at again if a kind that they need, or the right to read it there, has come or gone."""
    before, store.missing = store.missing, store.missing.after(listed)
    for namespace, kinds in listed.items():
        if (now := frozenset(kinds)) != before.kinds.get(namespace, frozenset()):
            log.info("optional_kinds_missing", namespace=namespace, kinds=sorted(kind.resource for kind in now))
    if store.missing != before:
        jobs = store.all(RLJOB).items()
        news |= {key for key, job in jobs if optional_kinds(job) & store.missing.differs(before, key.namespace)}


async def _list(kube: Kube, store: Store, news: set[Key], namespace: str | None) -> set[Kind]:
    """RLJobs first: what is known of their children must not be older. Then AT_ONCE kinds at a time: while the API
    server writes one page, the operator reads another; all kinds at once would be in memory twice.

    Returns the OPTIONAL kinds that the API server does not know, or does not let the operator read: the chart grants
    that only if its values say so.
    """
    at_once, missing = asyncio.Semaphore(AT_ONCE), set[Kind]()

    async def take(kind: Kind) -> None:
        async with at_once:
            try:
                found = await _listing(kube, kind, namespace)
            except (NotFound, Forbidden) as error:
                if kind not in OPTIONAL or error.status == HTTPStatus.UNAUTHORIZED:
                    raise
                missing.add(kind)
                news.update(store.forget(kind, namespace))
                return
            news.update(store.replace_all(kind, found.items, found.resource_version, namespace))

    await take(RLJOB)
    asked = [asyncio.create_task(take(kind)) for kind in WATCHED if kind not in (RLJOB, *CLUSTER_WIDE)]
    try:
        await asyncio.gather(*asked)
    finally:
        for each in asked:
            each.cancel()
    return missing


async def _listing(kube: Kube, kind: Kind, namespace: str | None) -> Listing:
    try:
        return await kube.list(kind, namespace, None if kind == RLJOB else JOB_LABEL)
    except NotFound as error:
        raise NotFound(f"there are no {kind.plural} of {kind.api_version} yet; install their CRD") from error


def _none_readable(refusals: Mapping[str, Forbidden]) -> Forbidden:
    first = next(iter(refusals.values()))
    words = f"none of the namespaces {', '.join(refusals)} is readable: {first.message}"
    return Forbidden(words, status=first.status, reason=first.reason)
