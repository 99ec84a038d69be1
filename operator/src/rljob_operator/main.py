"""`rljob-operator run`: the process.

kopf ── watches ──> store ──changed keys──> queue ── workers ──> reconcile      (the leader's queue alone is started)
lists, every RESYNC_SECONDS ──^                    └── the API server, fenced by the lease ── Ray's heads

Followers keep their store warm and decide nothing. A leader that loses its lease ends at once, in the middle of
whatever it does: each write is harmless when it is the last one, and a new process starts clean.

kopf takes a millisecond and more for each object that is there when it begins, of every kind: minutes for 10,000 jobs.
Our own lists take seconds, so who leads at once looks at every job first, and lets kopf begin then.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar, cast

import aiohttp
import kopf
import structlog

from rljob_operator.head import HeadAddress, shared_session
from rljob_operator.head.heads import Heads
from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import KubeError
from rljob_operator.kube.kinds import RLJOB, Key
from rljob_operator.names import OUR_MANAGERS
from rljob_operator.perform.performer import Performer
from rljob_operator.reconcile import Reconciler
from rljob_operator.runtime.health import serve
from rljob_operator.runtime.key import operator_key
from rljob_operator.runtime.lease import LeaderLease
from rljob_operator.runtime.logging import severity
from rljob_operator.runtime.metrics import CONTENT_TYPE, Metrics
from rljob_operator.runtime.queue import WorkQueue
from rljob_operator.runtime.store import Store
from rljob_operator.runtime.watches import list_all, login, quieten, register
from rljob_operator.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

DISTRIBUTION = LEASE_NAME = "rljob-operator"

RESYNC_SECONDS = 300.0

FIRST_RESYNC_SECONDS = 30.0
"""After kopf began: what was deleted between our list and its own shows only now. Also after a list that failed, or was
refused.
"""

STALE_SECONDS = 5.0
"""Lists that are older than that are asked for anew before anything is decided."""

FIRST_LOOK_SECONDS = 60.0
"""How long kopf waits for the first look at all jobs: what hangs with some of them must not keep news from others."""

RETRY_SECONDS = 2.0
HUNG_SECONDS = 300.0
STOP_SECONDS = 20.0
"""How long reconciles that have begun may take when the operator is told to end."""

NESTED_CALLS = 25_000
"""Python's limit for nested calls, which counts the levels of an object too: the API server takes jobs of up to 10,000,
and one that we could not read would keep us from all that are listed with it.
"""

LOST_LEASE = 1
"""Exit code of a leader that is none any more."""


@dataclass(frozen=True, slots=True)
class Options:
    """namespaces: empty for all. listen: address of /healthz, /readyz and /metrics."""

    settings: Settings
    namespaces: tuple[str, ...]
    listen: str
    workers: int = 32


class Operator:
    """The parts, wired. Each knows nothing of its owner."""

    def __init__(self, options: Options, connection: Connection, session: aiohttp.ClientSession) -> None:
        self._options, self._connection, self._session = options, connection, session
        self.store, self.listed, self.watchable = Store(), asyncio.Event(), asyncio.Event()
        self.metrics = Metrics()
        self._reads = Kube(connection, observe=self.metrics.api_call)
        self.lease = LeaderLease(self._reads, options.settings.operator_namespace, LEASE_NAME)
        self._kube = replace(self._reads, fence=self.lease.fence)
        self.queue: WorkQueue[Key] = WorkQueue(
            self._work, workers=options.workers, waited=self.metrics.queue_waited, failed=self._failed
        )
        self._reconciler: Reconciler | None = None
        self.metrics.read(jobs=self._phases, queue_depth=self.queue.__len__, leader=self.lease.held)

    async def lead(self) -> None:
        """Become the leader, learn everything, then work until the lease is lost."""
        with _uncollected():
            await _patiently(self._list)
            gc.freeze()  # what was listed stays, and need never be looked through
        self.listed.set()
        await self.lease.acquire(refused=self.watchable.set)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lease.keep(lost=lambda: os._exit(LOST_LEASE)))
            group.create_task(self._begin())

    async def _begin(self) -> None:
        begun = time.monotonic()
        key = await _patiently(lambda: operator_key(self._kube, self._options.settings.operator_namespace))
        settings = self._options.settings.model_copy(update={"key": key})
        heads = Heads(self._session, HeadAddress(settings.head_url), settings)
        performer = Performer(self._kube, heads, self.store)
        self._reconciler = Reconciler(
            self.store, heads, performer, settings, self.queue.add_after, self.metrics.restarted
        )
        if self.watchable.is_set() or time.monotonic() - begun > STALE_SECONDS:  # it had to wait, for lease or key
            await _patiently(self._list)  # what happened since the first lists, and no watch told
        self.queue.start()
        self.changed(set(self.store.all(RLJOB)))
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self.queue.caught_up()
        self.watchable.set()

    def changed(self, keys: set[Key]) -> None:
        """To look at again, where this process leads."""
        for key in keys:
            self.queue.add(key)

    async def resync(self) -> None:
        """Find what the watches have missed."""
        await self.watchable.wait()
        pause = FIRST_RESYNC_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause, readable = RESYNC_SECONDS, not self.store.unreadable
            try:
                await self._list()
                if readable and self.store.unreadable:  # perhaps for a moment, and nobody looks after its jobs
                    pause = FIRST_RESYNC_SECONDS
            except KubeError as error:
                pause = max(FIRST_RESYNC_SECONDS, error.retry_after or 0.0)
                log.warning("resync_failed", error=str(error), again_in=pause)

    async def _list(self) -> None:
        """What some lists have told is looked at though another fails, however often: to the store it is no news when
        the watch tells it. Before the queue starts, nobody looks.
        """
        news = set[Key]()
        try:
            with _uncollected():
                await list_all(self._reads, self.store, news, self._options.namespaces)
        finally:
            self.changed(news)

    async def _work(self, key: Key) -> None:
        assert self._reconciler is not None
        with self.metrics.reconcile():
            await self._reconciler.reconcile(key)

    def served(self) -> AbstractAsyncContextManager[str]:
        """What kubelet and Prometheus ask. A reconcile far longer than any deadline calls for a new process."""
        return serve(
            self._options.listen,
            healthy={"no reconcile hangs": lambda: self.queue.longest_run() < HUNG_SECONDS},
            ready={"everything is listed": self.listed.is_set},
            metrics=self.metrics.exposition,
            content_type=CONTENT_TYPE,
        )

    def _phases(self) -> Mapping[str, int]:
        """Of the jobs that it looks after. Read as JSON, for each scrape counts them all."""
        operators = (None, self._options.settings.operator_namespace)
        ours = [job for job in self.store.all(RLJOB).values() if job.get("spec", {}).get("managedBy") in OUR_MANAGERS]
        said = [job.get("status") or {} for job in ours]
        return Counter(status.get("phase", "Pending") for status in said if status.get("operator") in operators)

    def _failed(self, key: Key, error: BaseException, seconds: float) -> None:
        words = f"{type(error).__name__}: {error}"
        log.log(severity(error), "reconcile_failed", job=str(key), error=words, again_in=round(seconds, 1))


@contextmanager
def _uncollected() -> Iterator[None]:
    """What is read within has no cycles. The collector would look for some in all of it, again and again: of 10,000
    jobs that takes more time than to read them.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """However long the API server takes to answer, and no sooner again than it asks for."""
    while True:
        try:
            return await work()
        except KubeError as error:
            pause = max(RETRY_SECONDS, error.retry_after or 0.0)
            log.warning("start_delayed", error=str(error), again_in=pause)
            await asyncio.sleep(pause)


async def run(options: Options) -> None:
    """Until SIGTERM or SIGINT."""
    sys.setrecursionlimit(NESTED_CALLS)
    watching, over = asyncio.Event(), asyncio.Event()
    async with await Connection.open() as connection, shared_session() as session:
        operator = Operator(options, connection, session)
        async with operator.served() as url:
            log.info("operator_started", version=version(DISTRIBUTION), url=url, namespaces=options.namespaces or "all")
            watch = asyncio.create_task(_watch(operator, connection, options, watching, over))
            tasks = [watch, *map(asyncio.create_task, (operator.lead(), operator.resync(), _asked_to_end(watching)))]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await operator.queue.stop(STOP_SECONDS)
            await operator.lease.release()
            if not operator.watchable.is_set():
                watch.cancel()
            over.set()  # kopf goes last, for it cancels every task that began after it did
            await asyncio.wait([watch], timeout=STOP_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in done:
                task.result()


async def _asked_to_end(watching: asyncio.Event) -> None:
    """kopf would end at once, in the midst of our work: so its handlers of signals are replaced by ours."""
    asked = asyncio.Event()
    _on_signals(asked.set)
    waiting = asyncio.create_task(watching.wait())
    waiting.add_done_callback(lambda _: _on_signals(asked.set))
    await asked.wait()
    waiting.cancel()


def _on_signals(told: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told)


async def _watch(
    operator: Operator, connection: Connection, options: Options, watching: asyncio.Event, over: asyncio.Event
) -> None:
    """kopf looks once which kinds there are, so it begins when all were listed: KubeRay may be installed after us."""
    await operator.watchable.wait()
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    login(registry, connection, operator.metrics.api_call)
    register(registry, settings, operator.store, operator.changed)
    quieten(operator.store)
    await kopf.operator(
        registry=registry, settings=settings, standalone=True, ready_flag=watching, stop_flag=over,
        identity=cast(Any, operator.lease.identity),  # else it asks for the user's name, and a pod's user may have none
        clusterwide=not options.namespaces, namespaces=options.namespaces,
    )  # fmt: skip
