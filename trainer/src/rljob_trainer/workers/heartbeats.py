"""Which workers are alive: a thread asks each one, and waits on workers check the result."""

import threading
import time
from dataclasses import dataclass

import ray
import structlog
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from rljob_trainer.errors import WorkerLost, first_line
from rljob_trainer.workers.host import Beat
from rljob_trainer.workers.waiting import kind_of, lost
from rljob_trainer.workers.worker import Answer, Worker

log = structlog.get_logger()

BEAT_SECONDS = 1.0

START_SECONDS = 600.0
"""Deadline of a worker's first answer, which comes after its imports."""

DIAGNOSE_SECONDS = 3 * BEAT_SECONDS

STUCK = 10.0
"""A worker that answers may keep others waiting for this many times `silent_after`: it may be computing."""


@dataclass(slots=True)
class _Watched:
    """One worker. Seconds are counted per round, so that a driver that was frozen does not declare workers dead.

    asked: the open request for a heartbeat; None after an answer. silent: seconds without an answer.
    died: Ray's message; None while the worker lives.
    stuck: seconds without progress (Host.pace) while another worker was ahead.
    beat: the last answer; None before the first.
    vital: the job cannot continue without it.
    """

    worker: Worker[object]
    asked: Answer[Beat] | None
    vital: bool = True
    silent: float = 0.0
    stuck: float = 0.0
    beat: Beat | None = None
    died: str | None = None


class Heartbeats:
    """silent_after: seconds of silence after which a worker counts as dead."""

    def __init__(self, silent_after: float) -> None:
        self._silent_after = silent_after
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="heartbeats", daemon=True)
        self._thread.start()

    def watch(self, worker: Worker[object], *, vital: bool = True) -> None:
        """Watch a worker, or change `vital` of a watched one. vital: whether `check` and `diagnose` report its loss.

        The first request goes out at once: its answer shows when the imports are done.
        """
        with self._lock:
            known = self._watched.get(worker.name)
            if known is not None and known.worker is worker:
                known.vital = vital
            else:
                self._watched[worker.name] = _Watched(worker, worker.beat(), vital)

    def died(self, name: str) -> bool:
        with self._lock:
            return name in self._watched and self._watched[name].died is not None

    def forget(self, name: str) -> None:
        with self._lock:
            self._watched.pop(name, None)

    def check(self, *kinds: str) -> None:
        """Raise RankLost, EngineLost or RewardsLost for the first worker that is dead, silent or stuck.

        kinds: of "rank", "engine" and "rewards" (the rollout host), the ones to check; default all.
        """
        with self._lock:
            watched = list(self._watched.values())
        for each in watched:
            if not each.vital or (kinds and kind_of(each.worker.name) not in kinds):
                continue
            allowed = self._silent_after if each.beat is not None else START_SECONDS
            if each.died is not None or each.silent > allowed:
                raise lost(each.worker.name, each.died or f"has not answered for {each.silent:.0f} s")
            if each.beat is not None and each.stuck > STUCK * self._silent_after:
                raise lost(each.worker.name, _hangs(each.beat, each.stuck))

    def diagnose(self) -> WorkerLost | None:
        """The first lost worker, after enough time for all to answer; None if all live."""
        deadline = time.monotonic() + DIAGNOSE_SECONDS
        while time.monotonic() < deadline:
            try:
                self.check()
            except WorkerLost as found:
                return found
            time.sleep(BEAT_SECONDS / 10)
        return None

    def doing(self) -> str:
        """What each busy worker does, for the message at a deadline."""
        with self._lock:
            busy = [(name, each.beat) for name, each in sorted(self._watched.items()) if each.beat]
        texts = [
            f"{name}: {method} for {seconds:.0f} s (pid {beat.pid}{beat.detail})"
            for name, beat in busy
            for method, seconds in beat.doing
        ]
        return "; ".join(texts) or "no worker is busy"

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _ask_on(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            with self._lock:
                living = [each for each in self._watched.values() if each.died is None]
            if living:
                self._ask(living)

    def _ask(self, living: list[_Watched]) -> None:
        start = time.monotonic()
        asked = [each.asked or each.worker.beat() for each in living]
        ready, _ = ray.wait([each.ref for each in asked], num_returns=len(living), timeout=BEAT_SECONDS)
        answered = set(ready)
        round_seconds = min(BEAT_SECONDS + time.monotonic() - start, 2 * BEAT_SECONDS)
        for each, request in zip(living, asked, strict=True):
            each.asked = request
            heard = request.ref in answered and _hear(each, request)
            each.silent = 0.0 if heard else each.silent + round_seconds
        foremost = max((pace for each in living if (pace := _pace(each)) is not None), default=0)
        for each in living:
            if (pace := _pace(each)) is not None and pace < foremost:
                each.stuck += round_seconds


def _pace(watched: _Watched) -> int | None:
    return watched.beat.pace if watched.beat is not None else None


def _hear(watched: _Watched, request: Answer[Beat]) -> bool:
    """Read the answer. Returns whether the worker itself answered."""
    watched.asked = None
    before = _pace(watched)
    try:
        watched.beat = ray.get(request.ref)
        watched.stuck = watched.stuck if _pace(watched) == before else 0.0
    except ActorDiedError as error:
        watched.died = f"died: {first_line(error)}"
    except RayTaskError:  # fenced: a newer attempt has the worker, and the next call raises that
        return True
    except RayError as error:
        log.warning("worker_unreachable", worker=watched.worker.name, reason=first_line(error))
    else:
        return True
    return False


def _hangs(beat: Beat, seconds: float) -> str:
    methods = " and ".join(method for method, _ in beat.doing)
    return f"hangs in {methods}: others have waited for it for {seconds:.0f} s (pid {beat.pid}{beat.detail})"
