"""`rljob-operator run`: the process.

kopf's thread ── watches ──> store ──changed keys──> queue ── workers ──> reconcile      (only the leader's queue runs)
lists, every RESYNC_SECONDS ──^                             └── the API server, fenced by the lease ── Ray's heads

Followers keep their store warm and decide nothing. A leader that loses its lease ends at once, in the middle of
anything: each write is harmless if it is the last one, and a new process starts clean.

kopf takes a millisecond and more for each object that exists when it begins, of every kind: minutes for 10,000 jobs.
The operator's own lists take seconds, so a leader looks at every job first, and lets kopf begin then.
"""

import asyncio
import gc
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from importlib.metadata import version
from itertools import chain, repeat
from typing import TypeVar

import aiohttp
import structlog

from rljob_operator.head.address import HeadAddress
from rljob_operator.head.endpoint import shared_session
from rljob_operator.head.heads import Heads
from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import KubeError
from rljob_operator.kube.kinds import RLJOB, WORKLOAD, Key, Kind, Manifest
from rljob_operator.names import OUR_MANAGERS
from rljob_operator.perform.performer import Performer
from rljob_operator.reconcile import Reconciler
from rljob_operator.runtime.health import serve
from rljob_operator.runtime.key import operator_key
from rljob_operator.runtime.lease import LeaderLease
from rljob_operator.runtime.lists import list_all
from rljob_operator.runtime.logging import severity
from rljob_operator.runtime.metrics import CONTENT_TYPE, Metrics
from rljob_operator.runtime.queue import WorkQueue
from rljob_operator.runtime.store import Store
from rljob_operator.runtime.watches import quieten, unless, watch
from rljob_operator.settings import Settings

log = structlog.get_logger()

T = TypeVar("T")

DISTRIBUTION = LEASE_NAME = "rljob-operator"

RESYNC_SECONDS = 300.0

FIRST_RESYNC_SECONDS = 30.0
"""After kopf began: what was deleted between the operator's list and kopf's shows only now. Also after a list that
failed or was refused."""

STALE_SECONDS = 5.0
"""Older lists are repeated before anything is decided."""

FIRST_LOOK_SECONDS = 60.0
"""How long kopf waits for the first look at all jobs: a job that hangs must not keep news from others."""

RETRY_SECONDS = 2.0
AGAIN_SECONDS = (5.0, 5.0, 5.0, 10.0, 20.0, 60.0)
"""From each end of kopf's watches to the list that begins them again."""

HUNG_SECONDS = 300.0
STOP_SECONDS = 20.0
"""How long reconciles that have begun may take when the operator ends."""

NESTED_CALLS = 25_000
"""Python's limit for nested calls, which counts the levels of an object too: the API server accepts up to 10,000, and a
job that could not be parsed would hide all that are listed with it."""

UNCOLLECTED = 100_000
"""Objects between two runs of the collector. What is listed has no cycles; searching it for some, as often as Python's
default of 700 has it, takes longer than reading 10,000 jobs."""

LOST_LEASE = 1
"""Exit code of a leader that has lost its lease."""


class Operator:
    """The parts, wired. No part knows its owner."""

    def __init__(self, settings: Settings, connection: Connection, session: aiohttp.ClientSession) -> None:
        self._settings, self._connection, self._session = settings, connection, session
        self.store, self.listed, self.watchable = Store(), asyncio.Event(), asyncio.Event()
        self._other_kinds = asyncio.Event()  # OPTIONAL kinds were installed or removed, since kopf began
        self.metrics = Metrics()
        self._reads = Kube(connection, observe=self.metrics.api_call)
        self.lease = LeaderLease(self._reads, settings.operator_namespace, LEASE_NAME)
        self._kube = replace(self._reads, fence=self.lease.fence)
        self.queue: WorkQueue[Key] = WorkQueue(
            self._work, workers=settings.workers, waited=self.metrics.queue_waited, failed=self._failed
        )
        self._reconciler: Reconciler | None = None
        self.metrics.read(jobs=self._phases, queue_depth=self.queue.__len__, leader=self.lease.held)

    async def lead(self) -> None:
        """Become the leader, learn everything, then work until the lease is lost."""
        await _patiently(self._list)
        gc.freeze()  # what was listed stays, so the collector need not search it
        self.listed.set()
        await self.lease.acquire(refused=self.watchable.set)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lease.keep(lost=lambda: os._exit(LOST_LEASE)))
            group.create_task(self._begin())

    async def _begin(self) -> None:
        begun = time.monotonic()
        key = await _patiently(lambda: operator_key(self._kube, self._settings.operator_namespace))
        settings = self._settings.model_copy(update={"key": key})
        heads = Heads(self._session, HeadAddress(settings.head_url), settings)
        performer = Performer(self._kube, heads, self.store)
        self._reconciler = Reconciler(
            self.store, heads, performer, settings, self.queue.add_after, self.metrics.restarted
        )
        if self.watchable.is_set() or time.monotonic() - begun > STALE_SECONDS:  # it waited for lease or key
            await _patiently(self._list)  # what happened since the first lists
        self.queue.start()
        self.changed({*self.store.all(RLJOB), *self.store.jobs_with(WORKLOAD)})
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self.queue.caught_up()
        self.watchable.set()

    def changed(self, keys: set[Key]) -> None:
        """Jobs to look at again, if this process leads."""
        for key in keys:
            self.queue.add(key)

    async def resync(self) -> None:
        """Find what the watches have missed. Soon, while a namespace is unreadable or a job needs a missing kind."""
        await self.watchable.wait()
        pause, due = FIRST_RESYNC_SECONDS, 0.0
        while True:
            await asyncio.sleep(pause)
            waits = self.store.unreadable or self.store.lacks_kinds  # such a job may be younger than the last lists
            if time.monotonic() < due and not waits:
                continue
            pause = FIRST_RESYNC_SECONDS
            try:
                await self._list()
                due = time.monotonic() + RESYNC_SECONDS
            except KubeError as error:
                pause, due = max(pause, error.retry_after or 0.0), 0.0
                log.warning("resync_failed", error=str(error), again_in=pause)

    async def watch(self) -> None:
        """kopf looks once which kinds there are, so it begins after all were listed, and again once OPTIONAL kinds
        are installed or removed: KubeRay, Kueue and gang schedulers may be installed later.
        """
        await self.watchable.wait()
        quieten(self.store)
        namespaces, identity = self._settings.namespaces, self.lease.identity
        for pause in chain(AGAIN_SECONDS, repeat(AGAIN_SECONDS[-1])):
            missing = self.store.missing.everywhere
            ended = watch(self._connection, self.heard, self.metrics.api_call, namespaces, identity, missing)
            if await unless(ended, self._other_kinds):
                log.warning("watches_ended", again_in=pause)
                await asyncio.sleep(pause)
            await _patiently(self._list)

    def heard(self, kind: Kind, manifest: Manifest, deleted: bool) -> None:
        """What a watch reports."""
        self.changed(self.store.remove(kind, manifest) if deleted else self.store.put(kind, manifest))

    async def _list(self) -> None:
        """Jobs that were listed are looked at even if another list fails: their watches are no news to the store."""
        news, missing = set[Key](), self.store.missing.everywhere
        try:
            await list_all(self._reads, self.store, news, self._settings.namespaces)
        finally:
            self.changed(news)
        if self.store.missing.everywhere != missing:
            self._other_kinds.set()

    async def _work(self, key: Key) -> None:
        assert self._reconciler is not None
        with self.metrics.reconcile():
            await self._reconciler.reconcile(key)

    def served(self) -> AbstractAsyncContextManager[str]:
        """What kubelet and Prometheus ask. Kubelet restarts a process with a reconcile beyond every deadline."""
        return serve(
            self._settings.listen,
            healthy={"no reconcile hangs": lambda: self.queue.longest_run() < HUNG_SECONDS},
            ready={"everything is listed": self.listed.is_set},
            metrics=self.metrics.exposition,
            content_type=CONTENT_TYPE,
        )

    def _phases(self) -> Mapping[str, int]:
        """How many of its jobs are in each phase. Read as JSON, because each scrape counts them all."""
        operators = (None, self._settings.operator_namespace)
        ours = [job for job in self.store.all(RLJOB).values() if job.get("spec", {}).get("managedBy") in OUR_MANAGERS]
        statuses = [job.get("status") or {} for job in ours]
        return Counter(status.get("phase", "Pending") for status in statuses if status.get("operator") in operators)

    def _failed(self, key: Key, error: BaseException, seconds: float) -> None:
        words = f"{type(error).__name__}: {error}"
        log.log(severity(error), "reconcile_failed", job=str(key), error=words, again_in=round(seconds, 1))


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Retries until the API server answers, and no sooner than it asks for."""
    while True:
        try:
            return await work()
        except KubeError as error:
            pause = max(RETRY_SECONDS, error.retry_after or 0.0)
            log.warning("start_delayed", error=str(error), again_in=pause)
            await asyncio.sleep(pause)


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT."""
    sys.setrecursionlimit(NESTED_CALLS)
    gc.set_threshold(UNCOLLECTED)
    async with await Connection.open() as connection, shared_session() as session:
        operator = Operator(settings, connection, session)
        async with operator.served() as url:
            log.info(
                "operator_started", version=version(DISTRIBUTION), url=url, namespaces=settings.namespaces or "all"
            )
            parts = (operator.lead(), operator.resync(), operator.watch(), _asked_to_end())
            tasks = [asyncio.create_task(part) for part in parts]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await operator.queue.stop(STOP_SECONDS)
            await operator.lease.release()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
            for task in done:
                task.result()


async def _asked_to_end() -> None:
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    await asked.wait()
