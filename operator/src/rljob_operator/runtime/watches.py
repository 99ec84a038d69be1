"""kopf watches every kind that a decision rests on, and reports each event.

It runs in a thread and a loop of its own: when kopf ends, it cancels every task of its loop that began after it did,
and while it runs, it takes a millisecond and more for each object. It ends by itself on an answer that it does not
expect to a list or a watch: a 404 while a CRD is replaced, a line that was cut. Its owner then lists everything and
starts it again.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import kopf

from rljob_operator.kube.client import Observer
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.kinds import CLUSTER_WIDE, RLJOB, WATCHED, Kind, Manifest
from rljob_operator.names import JOB_LABEL
from rljob_operator.runtime.store import Store

ENDING_SECONDS = 1.0
"""How long kopf may take to close its connections. Its other tasks are abandoned with its loop."""

KILL_SECONDS = 40.0
"""From kopf's end by itself to its clean-up. If that does not come, kopf kills the process: no watch is left."""

Heard = Callable[[Kind, Manifest, bool], None]
"""Called with an object, and whether it was deleted."""


async def watch(
    connection: Connection, heard: Heard, observe: Observer, namespaces: Sequence[str], identity: str,
    missing: Collection[Kind] = (),
) -> None:  # fmt: skip
    """Returns when kopf has ended by itself. Cancelled, it ends kopf first.

    heard: called in this loop. namespaces: empty for all. missing: kinds that the API server does not know.
    """
    ours, ended = asyncio.get_running_loop(), asyncio.Event()
    theirs, over = asyncio.new_event_loop(), asyncio.Event()

    def report(*news: Any) -> None:
        ours.call_soon_threadsafe(heard, *news)

    def run() -> None:
        asyncio.set_event_loop(theirs)
        theirs.set_exception_handler(lambda *_: None)  # kopf leaves tasks behind
        try:
            theirs.run_until_complete(_operate(connection, report, observe, namespaces, identity, missing, over))
        finally:
            theirs.close()
            with suppress(RuntimeError):  # the process has ended first
                ours.call_soon_threadsafe(ended.set)

    Thread(target=run, name="kopf", daemon=True).start()
    try:
        await ended.wait()
    finally:
        with suppress(RuntimeError):  # it has ended
            theirs.call_soon_threadsafe(over.set)
        await ended.wait()


async def unless(work: Coroutine[Any, Any, None], event: asyncio.Event) -> bool:
    """Whether the work ended first. Otherwise it is cancelled, and the event is over."""
    event.clear()
    tasks = [asyncio.create_task(work), asyncio.create_task(event.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _operate(
    connection: Connection, heard: Heard, observe: Observer, namespaces: Sequence[str], identity: str,
    missing: Collection[Kind], over: asyncio.Event,
) -> None:  # fmt: skip
    """kopf logs the error that it ends with, cleans up, and then may wait for its own watches without end."""
    registry, settings, clean = kopf.OperatorRegistry(), kopf.OperatorSettings(), asyncio.Event()

    async def cleanup(**_: Any) -> None:
        clean.set()

    kopf.on.cleanup(registry=registry)(cleanup)
    login(registry, connection, observe)
    register(registry, settings, heard, missing)
    operator = kopf.operator(
        registry=registry, settings=settings, standalone=True, stop_flag=over,
        identity=cast(Any, identity),  # else it asks for the user's name, and a pod's user may have none
        clusterwide=not namespaces, namespaces=namespaces,
    )  # fmt: skip
    tasks = [asyncio.create_task(operator), asyncio.create_task(clean.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(tasks[:1], timeout=ENDING_SECONDS)


def register(
    registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, heard: Heard, missing: Collection[Kind] = ()
) -> None:  # fmt: skip
    """Have kopf watch every kind that is not missing; of children and pods, those that carry the operator's label."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.networking.error_backoffs = _Forever()
    settings.process.ultimate_exiting_timeout = KILL_SECONDS
    for kind in (kind for kind in WATCHED if kind not in missing):
        group, _, version = kind.api_version.rpartition("/")
        if kind not in (RLJOB, *CLUSTER_WIDE):
            settings.watching.label_selectors[group, version, kind.plural] = JOB_LABEL
        kopf.on.event(group, version, kind.plural, id=kind.resource, registry=registry)(_handler(kind, heard))


def _handler(kind: Kind, heard: Heard) -> Callable[..., Any]:
    async def handle(event: kopf.RawEvent, **_: Any) -> None:
        manifest = {"apiVersion": kind.api_version, "kind": kind.name, **event["object"]}
        heard(kind, manifest, event["type"] == "DELETED")

    return handle


def quieten(store: Store) -> None:
    """kopf retries a watch that is forbidden without end, and logs an error for each kind and try. The lists log once
    that a namespace, or a kind in it, may not be read, and when it may again.
    """

    def is_news(record: logging.LogRecord) -> bool:
        words = record.getMessage() if record.name.startswith("kopf.") else ""
        known = (*(f"/namespaces/{each}/" for each in store.unreadable), *store.missing.paths)
        return not any(path in words for path in known)

    for handler in logging.getLogger().handlers:
        handler.addFilter(is_news)


def login(registry: kopf.OperatorRegistry, connection: Connection, observe: Observer) -> None:
    """kopf connects as the operator does, and its requests are counted with the operator's."""
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
        if last is None or last[0] != info:  # kopf asks once more after a refusal, and gives up at the same answer
            last = info, kopf.AiohttpSession(server=info.server, aiohttp_session=_observed(info, observe))
        return last[1]

    kopf.on.login(registry=registry)(connect)


def _observed(info: kopf.ConnectionInfo, observe: Observer) -> aiohttp.ClientSession:
    """Reports each request for one of the kinds when its answer begins, or fails to."""

    async def start(_session: object, context: SimpleNamespace, _parameters: object) -> None:
        context.began = time.perf_counter()

    async def end(_session: object, context: SimpleNamespace, parameters: Any) -> None:
        url, error = parameters.url, getattr(parameters, "exception", None)
        code = "Timeout" if isinstance(error, TimeoutError) else "NoConnection"
        if url.name in (kind.plural for kind in WATCHED):
            verb = "watch" if url.query.get("watch") == "true" else "list"
            code = code if error is not None else str(parameters.response.status)
            observe(verb, url.name, code, time.perf_counter() - context.began)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_end.append(end)
    trace.on_request_exception.append(end)
    connector = aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context())  # a watch holds its connection
    return aiohttp.ClientSession(connector=connector, headers=info.as_http_headers(), trace_configs=[trace])


class _NoDiffs(kopf.AnnotationsDiffBaseStorage):
    """kopf copies each object, to compare it for handlers of changes. There are none."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})


class _Forever:
    """Seconds between two tries of a request that gets no answer, or 403, 429 or 5xx. After the last one kopf would
    give up, also in its look for the kinds that exist: a minute without a Role must not end it.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 2.0, 5.0, 10.0, 20.0), itertools.repeat(60.0))
