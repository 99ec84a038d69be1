"""A keyed, level-triggered work queue.

    add ──► waiting ──► running ──► done
              ▲  ▲         │ │
              │  │         │ └────► failed ──┐
              │  └── added meanwhile         │ backoff
              │                              ▼
              └─────────────────────────── timer ◄── add_after

Waiting keys run in their order of arrival, each once even if it was added several times, `workers` of them at a time
and never one key twice at a time. A key that is added while it runs, runs once more. So after every add between start
and stop a run of the key begins. Everything happens in the loop's thread.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Backoff:
    """Seconds to wait after the n-th failure in a row: first · 2ⁿ⁻¹, at most cap, less a random part of up to half."""

    first: float = 0.5
    cap: float = 300.0
    part: Callable[[float, float], float] = random.uniform

    def delay(self, failures: int) -> float:
        return min(self.cap, self.first * 2.0 ** min(failures - 1, 60)) * self.part(0.5, 1.0)


class WorkQueue(Generic[K]):
    """What is added before the start, or after the stop, is dropped: after the start its owner adds all keys.

    work: one run of a key. It has its own deadline. If it raises, the key runs again after the backoff, or sooner if it
        is added; but never before the error's `retry_after` has passed, if it has one. A failure before the backoff is
        over does not prolong it: a burst of news is no series of failures.
    waited: called with the seconds between an add and the start of its run.
    failed: called with the key, the error, and the seconds until the next run.
    """

    def __init__(
        self,
        work: Callable[[K], Awaitable[None]],
        *,
        workers: int = 16,
        backoff: Backoff | None = None,
        waited: Callable[[float], None] = lambda _seconds: None,
        failed: Callable[[K, BaseException, float], None] = lambda _key, _error, _seconds: None,
    ) -> None:
        self._work, self._workers, self._backoff = work, workers, backoff or Backoff()
        self._waited, self._failed = waited, failed
        self._open = self._over = False
        self._waiting: OrderedDict[K, float] = OrderedDict()  # since when
        self._running: dict[K, tuple[float, asyncio.Task[None]]] = {}  # since when
        self._again: dict[K, float] = {}  # added while they run, and when
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, tuple[int, float]] = {}  # how many in a row, and until when the backoff lasts
        self._not_before: dict[K, float] = {}
        self._caught_up = asyncio.Event()

    def __len__(self) -> int:
        """How many runs are due and have not begun."""
        return len(self._waiting) + len(self._again)

    def longest_run(self) -> float:
        """Seconds since the oldest of the present runs began; 0 if nothing runs."""
        return next((_now() - since for since, _ in self._running.values()), 0.0)

    def add(self, key: K) -> None:
        if not self._open:
            return
        if key in self._running:
            self._again.setdefault(key, _now())
        else:
            self._enqueue(key, _now())
            self._start_runs()

    def add_after(self, key: K, seconds: float) -> None:
        """The earliest of several times of a key counts: a run looks at the whole state, and asks for the next time."""
        self._add_at(key, _now() + seconds)

    def _add_at(self, key: K, when: float) -> None:
        timer = self._timers.get(key)
        if timer is None or when < timer.when():
            self._timers[key] = asyncio.get_running_loop().call_at(when, self._due, key)
            if timer is not None:
                timer.cancel()

    def start(self) -> None:
        """Not after it was stopped."""
        self._open = not self._over
        self._start_runs()

    async def caught_up(self) -> None:
        """Waits until every run that may begin has begun."""
        await self._caught_up.wait()

    async def stop(self, grace: float) -> None:
        """Begins no more runs, and waits for those that have begun. Cancels what still runs after `grace` seconds."""
        self._open, self._over = False, True
        runs = [run for _, run in self._running.values()]
        if runs:
            _, late = await asyncio.wait(runs, timeout=grace)
            for run in late:
                run.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _enqueue(self, key: K, since: float) -> None:
        wait = self._not_before.get(key, since) - _now()
        if wait > 0:
            self.add_after(key, wait)
        else:
            self._waiting.setdefault(key, since)

    def _due(self, key: K) -> None:
        del self._timers[key]
        self.add(key)

    def _start_runs(self) -> None:
        while self._open and self._waiting and len(self._running) < self._workers:
            key, since = self._waiting.popitem(last=False)
            self._waited(_now() - since)
            self._running[key] = _now(), asyncio.create_task(self._run(key))
        if self._open and not self._waiting:
            self._caught_up.set()
        else:
            self._caught_up.clear()

    async def _run(self, key: K) -> None:
        self._not_before.pop(key, None)
        try:
            await self._work(key)
        except asyncio.CancelledError as error:
            if self._running[key][1].cancelling():
                raise
            self._retry(key, error)  # a task that the work waited for was cancelled, not the work
        except Exception as error:  # noqa: BLE001 - one key's error must not stop the others
            self._retry(key, error)
        else:
            self._failures.pop(key, None)
        finally:
            del self._running[key]
            if key in self._again:
                self._enqueue(key, self._again.pop(key))
            self._start_runs()

    def _retry(self, key: K, error: BaseException) -> None:
        now, (times, until) = _now(), self._failures.get(key, (0, 0.0))
        if now >= until:
            times, until = times + 1, now + self._backoff.delay(times + 1)
        self._failures[key] = times, until
        self._not_before[key] = now + (getattr(error, "retry_after", None) or 0.0)
        self._add_at(key, max(until, self._not_before[key]))
        self._failed(key, error, max(self._timers[key].when(), self._not_before[key]) - now)


def _now() -> float:
    return asyncio.get_running_loop().time()
