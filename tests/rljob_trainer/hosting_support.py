"""Workers for tests of hosting: what they do, and the attempts that have them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil

from rljob_trainer.errors import EngineLost, InfrastructureError, WorkerLost
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.host import Host
from rljob_trainer.workers.roster import Roster
from rljob_trainer.workers.waiting import wait_for, wait_for_all
from rljob_trainer.workers.worker import Answer, Worker

SECONDS = 100.0
PATIENT = 15.0
"""Silence that a driver bears where the test is not about silence."""
SILENT_AFTER = 5.0

GONE_SECONDS = 60.0
"""Ray forces a process that is frozen after 5 s."""


class Notes:
    """The work: records the words that it receives."""

    def __init__(self, slow_start: float) -> None:
        time.sleep(slow_start)
        self.told: list[str] = []
        self.met: int | None = None

    def tell(self, word: str) -> list[str]:
        self.told.append(word)
        return self.told

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def meet(self, times: int, pause: float = 0.0) -> None:
        """As ranks do in collectives: so many times, and then it hangs."""
        for number in range(times):
            time.sleep(pause)
            self.met = number + 1
        time.sleep(SECONDS)

    def refuse(self, why: str) -> None:
        raise InfrastructureError(why)

    def accuse(self, worker: str) -> None:
        raise EngineLost(f"{worker} is to blame", worker=worker)


class NoteHost(Host):
    """Anybody may tell it something; the rest is its driver's."""

    harmless = frozenset({"tell"})

    def create(self, slow_start: float) -> Notes:
        self.claims = 0
        return Notes(slow_start)

    def claimed(self) -> None:
        self.claims += 1

    def detail(self) -> str:
        return f", {self.claims} claims"

    def pace(self) -> int | None:
        return self.worker.met


@contextmanager
def driver(
    attempt: int, silent_after: float = PATIENT, leave_after: float = 300.0, fence: Callable[[], None] = lambda: None
) -> Iterator[tuple[Roster, Heartbeats]]:
    """What an attempt has; it leaves its workers behind."""
    heartbeats = Heartbeats(silent_after)
    try:
        yield Roster(attempt, leave_after, heartbeats, fence), heartbeats
    finally:
        heartbeats.close()


@contextmanager
def first_attempt(silent_after: float = SILENT_AFTER) -> Iterator[tuple[Roster, Heartbeats]]:
    """One whose workers end with it."""
    with driver(1, silent_after) as (roster, heartbeats):
        try:
            yield roster, heartbeats
        finally:
            roster.end_all()


def start(roster: Roster, name: str, signature: str = "s", slow_start: float = 0.0) -> Worker[Any]:
    return roster.start(name, signature, NoteHost, {}, slow_start)


def value(asked: Answer[Any] | Sequence[Answer[Any]]) -> Any:
    if isinstance(asked, Sequence):
        return wait_for_all(asked, SECONDS, "workers of a test")
    return wait_for(asked, SECONDS, "a worker of a test")


def process_of(worker: Worker[Any]) -> psutil.Process:
    return psutil.Process(value(worker.beat()).pid)


def loss_of(heartbeats: Heartbeats) -> WorkerLost:
    """Wait until the heartbeats report a lost worker."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            heartbeats.check()
        except WorkerLost as found:
            return found
        time.sleep(0.05)
    raise TimeoutError(f"no worker was lost: {heartbeats._watched}")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
