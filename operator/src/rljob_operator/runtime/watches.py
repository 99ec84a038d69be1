"""What kopf watches, told to the store; each change names the jobs to look at again.

kopf does not report objects that vanished while a watch was down, so lists correct the store from time to time. And a
decision needs all kinds: the first lists come before the first decision.
"""

import asyncio
import itertools
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
import structlog
from kopf._cogs.clients import errors, watching
from yarl import URL

from rljob_operator.kube.client import Kube, Listing, Observer
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import Forbidden, NotFound
from rljob_operator.kube.kinds import POD, RLJOB, Key, Kind
from rljob_operator.names import JOB_LABEL
from rljob_operator.observe.gather import CHILD_KINDS
from rljob_operator.runtime.store import Store

log = structlog.get_logger()

WATCHED = (RLJOB, *CHILD_KINDS, POD)

AT_ONCE = 2
"""Kinds that are listed side by side."""

AGAIN_SECONDS = 5.0
"""From a watch that failed to the list that begins it anew."""

ENDING_SECONDS = 40.0
"""Of kopf, where it ends by itself, and of what we do then. Its default is 10 minutes."""

_OF_A_MOMENT = re.compile(r"attempt #[1-3]\b.*; will retry: .*APITooManyRequestsError", re.DOTALL)
"""kopf's words. What is so at the fourth try has lasted for 8 seconds, and is worth a line."""

Changed = Callable[[set[Key]], None]


def register(registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, store: Store, changed: Changed) -> None:
    """Have kopf watch every kind that a decision rests on; of other kinds than RLJobs, those that carry our label.

    Should it end in spite of all, it may hang in that, with all watches gone, and nobody notices: then it kills the
    process.
    """
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.networking.error_backoffs = _Forever()
    settings.process.ultimate_exiting_timeout = ENDING_SECONDS
    watching.continuous_watch = _watch_on
    for kind in WATCHED:
        group, _, version = kind.api_version.rpartition("/")
        if kind != RLJOB:
            settings.watching.label_selectors[group, version, kind.plural] = JOB_LABEL
        kopf.on.event(group, version, kind.plural, id=kind.plural, registry=registry)(_handler(kind, store, changed))


def quieten(store: Store) -> None:
    """kopf tries what it may not watch for ever, and says so of each kind and try, as an error. Of a namespace that may
    not be read the lists have said it, and will say when it may be read again. And while a CRD is updated, the API
    server answers for a moment that there are too many requests.
    """

    def is_news(record: logging.LogRecord) -> bool:
        said = record.getMessage()
        return not (_OF_A_MOMENT.search(said) or any(f"/namespaces/{each}/" in said for each in store.unreadable))

    watching.logger.addFilter(is_news)


def login(registry: kopf.OperatorRegistry, connection: Connection, observe: Observer) -> None:
    """kopf connects as we do, and its requests are counted as ours: a watch that dies is followed by another one, and
    one that expires by a list too.
    """
    last: tuple[kopf.ConnectionInfo, kopf.AiohttpSession] | None = None

    async def connect(**_: Any) -> kopf.AiohttpSession:
        nonlocal last
        found = connection.configuration
        token = await found.get_api_key_with_prefix("BearerToken")
        info = kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            scheme=token.partition(" ")[0] if token else None,
            token=token.partition(" ")[2] if token else None,
        )
        if last is None or last[0] != info:  # kopf asks once more where it was refused, and gives up at the same answer
            last = info, kopf.AiohttpSession(server=info.server, aiohttp_session=_observed(info, observe))
        return last[1]

    kopf.on.login(registry=registry)(connect)


def _observed(info: kopf.ConnectionInfo, observe: Observer) -> aiohttp.ClientSession:
    """What asks for one of the kinds is told of when its answer begins, or fails to."""

    def told(began: float, url: URL, code: str) -> None:
        if (resource := url.name) in (kind.plural for kind in WATCHED):
            verb = "watch" if url.query.get("watch") == "true" else "list"
            observe(verb, resource, code, time.perf_counter() - began)

    async def start(_session: object, context: SimpleNamespace, _parameters: object) -> None:
        context.began = time.perf_counter()

    async def end(_session: object, context: SimpleNamespace, parameters: aiohttp.TraceRequestEndParams) -> None:
        told(context.began, parameters.url, str(parameters.response.status))

    async def fail(
        _session: object, context: SimpleNamespace, parameters: aiohttp.TraceRequestExceptionParams
    ) -> None:  # fmt: skip
        told(
            context.began,
            parameters.url,
            "Timeout" if isinstance(parameters.exception, TimeoutError) else "NoConnection",
        )

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_end.append(end)
    trace.on_request_exception.append(fail)
    connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())  # a watch holds its connection
    return aiohttp.ClientSession(connector=connector, headers=info.as_http_headers(), trace_configs=[trace])


async def list_all(kube: Kube, store: Store, news: set[Key], namespaces: Sequence[str] = ()) -> None:
    """Correct the store from lists, and add the jobs for which something was new. namespaces: empty for all.

    Where it raises, store and news have what was listed until then: before the first complete lists, that is no ground
    for a decision.
    A namespace that may not be read keeps what is known of it, and nothing is decided there until all of it has been
    listed: its Role may be late, gone for a moment, or gone for ever with it. Raises Forbidden where none may be read.
    """
    refusals = dict[str, Forbidden]()
    for namespace in namespaces or (None,):
        try:
            await _list(kube, store, news, namespace)
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
    news |= {key for key in store.all(RLJOB) if key.namespace in readable_again}


async def _list(kube: Kube, store: Store, news: set[Key], namespace: str | None) -> None:
    """RLJobs first: what is known of their children must not be older. Of those AT_ONCE kinds at a time: while the API
    server writes one page, we read another; all of them would be in memory twice.
    """
    at_once = asyncio.Semaphore(AT_ONCE)

    async def take(kind: Kind) -> None:
        async with at_once:
            found = await _listing(kube, kind, namespace)
            news.update(store.replace_all(kind, found.items, found.resource_version, namespace))

    await take(RLJOB)
    asked = [asyncio.create_task(take(kind)) for kind in WATCHED if kind != RLJOB]
    try:
        await asyncio.gather(*asked)
    finally:
        for each in asked:
            each.cancel()


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
    """Seconds between two tries of a request that finds nobody, or is answered 403, 429 or 5xx. After the last one kopf
    would give up, its look for the kinds that there are too: a minute without a Role would be one too many.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 2.0, 5.0, 10.0, 20.0), itertools.repeat(60.0))


_kopfs_watch = watching.continuous_watch


async def _watch_on(**of: Any) -> AsyncIterator[Any]:
    """kopf asks no more after any other answer to a list or a watch, or an error within a watch, and ends with all its
    watches: a 404 while a CRD is replaced, a line that was cut. Where its watch ends, it lists and watches anew.
    """
    try:
        async for event in _kopfs_watch(**of):
            yield event
    except (errors.APIError, watching.WatchingError, aiohttp.ClientError, ValueError, RecursionError) as error:
        words, where = f"{type(error).__name__}: {error}", of["namespace"] or "all"
        log.warning("watch_failed", kind=of["resource"].plural, namespace=where, error=words, again_in=AGAIN_SECONDS)
        await asyncio.sleep(AGAIN_SECONDS)


def _handler(kind: Kind, store: Store, changed: Changed) -> Callable[..., Any]:
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, **event["object"]}
        changed(store.remove(kind, manifest) if event["type"] == "DELETED" else store.put(kind, manifest))

    return handle
