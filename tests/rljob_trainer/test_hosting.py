"""Workers that outlive their driver: claimed, fenced, taken over, left alone. Real Ray, one cluster for the module."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_trainer.attempt.claim import check_not_superseded, claim
from rljob_trainer.errors import FencedError, InfrastructureError
from rljob_trainer.volume import Volume
from rljob_trainer.workers import roster as hosting_roster
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.host import HostSettings
from rljob_trainer.workers.roster import Roster
from tests.rljob_trainer.hosting_support import (
    GONE_SECONDS,
    SECONDS,
    NoteHost,
    Notes,
    driver,
    first_attempt,
    process_of,
    start,
    until,
    value,
)
from tests.rljob_trainer.ray_support import own_ray


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with own_ray("hosting"):
        yield


@pytest.fixture
def mine() -> Iterator[tuple[Roster, Heartbeats]]:
    with first_attempt() as attempt:
        yield attempt


def test_a_claimed_worker_obeys_the_newer_attempt_alone(mine: tuple[Roster, Heartbeats]):
    roster, heartbeats = mine
    old = start(roster, "engine-0")
    assert value(old.call(Notes.tell, "first")) == ["first"]
    with driver(2) as (newer, _):
        new = newer.adopt({"engine-0": ["s"]})["engine-0"]
        assert value(new.call(Notes.tell, "second")) == ["first", "second"], "it kept what it held"
        refused: list[Callable[[], Any]] = [
            lambda: value(old.call(Notes.rest, 0.0)),
            lambda: value(old.beat()),
            lambda: value(old.claim()),
        ]
        for call in refused:
            with pytest.raises(FencedError, match=r"attempt 2 .*has taken over from attempt 1"):
                call()
        assert value(old.call(Notes.tell, "of a replaced driver"))[-1] == "of a replaced driver", (
            "harmless stays allowed"
        )
        assert value(new.beat()).detail == ", 1 claims"
        heartbeats.check()  # being refused is no loss: the old driver's next call says what happened


@pytest.mark.slow
def test_only_the_workers_that_can_stand_in_are_taken_over(mine: tuple[Roster, Heartbeats]):
    roster, _ = mine
    workers = {name: start(roster, name, "mine") for name in ("rank-0", "rank-1", "rank-2", "rank-3")}
    processes = {name: process_of(worker) for name, worker in workers.items()}
    processes["rank-2"].kill()
    processes["rank-3"].suspend()
    with driver(2) as (newer, heartbeats):
        wanted = {f"rank-{i}": ["another"] if i == 1 else ["mine", "another"] for i in range(5)}
        adopted = newer.adopt(wanted)
        assert {name: worker.signature for name, worker in adopted.items()} == {"rank-0": "mine"}
        _, left = psutil.wait_procs(list(processes.values()), timeout=GONE_SECONDS)
        assert left == [processes["rank-0"]], "those of others, of the dead and of the frozen are gone"
        heartbeats.check()
        newer.end_all()
    processes["rank-0"].wait(timeout=GONE_SECONDS)


@pytest.mark.slow
def test_a_worker_leaves_when_no_attempt_claims_it():
    with driver(1, leave_after=3.0) as (roster, _):
        staying = start(roster, "engine-7")
        process = process_of(staying)
        time.sleep(4.0)
        assert process.is_running(), "its driver's questions are what keeps it"
    process.wait(timeout=GONE_SECONDS)


def test_a_replaced_driver_ends_and_starts_no_worker(tmp_path: Path):
    """Ray lets any driver kill any worker, and these belong to a newer attempt."""
    volume = Volume(tmp_path)
    claim(volume, 1)
    with driver(1, fence=lambda: check_not_superseded(volume, 1)) as (old, _):
        worker = start(old, "rank-5")
        value(worker.beat())
        claim(volume, 2)
        with driver(2) as (newer, _):
            taken = newer.adopt({"rank-5": ["s"]})["rank-5"]
            refused: list[Callable[[], Any]] = [
                lambda: old.end(worker), lambda: old.kill("rank-5"), old.end_all, lambda: start(old, "rank-6")
            ]  # fmt: skip
            for act in refused:
                with pytest.raises(FencedError, match=r"attempt 2 .*has taken over from attempt 1"):
                    act()
            assert value(taken.call(Notes.tell, "alive")) == ["alive"]
            newer.end_all()


def test_a_name_that_is_taken_is_no_bug(mine: tuple[Roster, Heartbeats]):
    roster, _ = mine
    start(roster, "engine-3")
    with pytest.raises(InfrastructureError, match="engine-3"):
        start(roster, "engine-3")


def test_of_two_claims_at_once_the_newer_one_comes_last():
    go_on, order = threading.Event(), []

    class Slow(NoteHost):
        def claimed(self) -> None:
            attempt = self._attempt
            if attempt == 2:
                go_on.wait(SECONDS)
            order.append(attempt)

    host = Slow(HostSettings(1, "s", leave_after=1e9), 0.0)
    claims = [threading.Thread(target=host.claim, args=(attempt,)) for attempt in (2, 3)]
    claims[0].start()
    until(lambda: host._attempt == 2)
    claims[1].start()
    claims[1].join(0.5)
    go_on.set()
    for thread in claims:
        thread.join(SECONDS)
    assert order == [2, 3]


def test_a_takeover_takes_the_spare_along_that_answers_after_the_engine(mine: tuple[Roster, Heartbeats], monkeypatch):
    monkeypatch.setattr(hosting_roster, "LATE_SECONDS", 30.0)
    roster, _ = mine
    spare = start(roster, "engine-1", "spare")
    value(start(roster, "engine-0", "place 0").beat())
    process = process_of(spare)
    process.suspend()
    thaw = threading.Timer(0.2, process.resume)
    with driver(2) as (successor, _):
        thaw.start()
        adopted = successor.adopt(dict.fromkeys(("engine-0", "engine-1"), ("place 0", "spare")), wanted=("place 0",))
        assert sorted(adopted) == ["engine-0", "engine-1"]
        successor.end_all()


def test_takeover_waits_for_nobody_but_those_it_wants(mine: tuple[Roster, Heartbeats]):
    """A spare that imports for a minute keeps no driver from its engines."""
    roster, _ = mine
    value(start(roster, "engine-0", "place 0").beat())
    start(roster, "engine-1", "spare", slow_start=60.0)
    with driver(2) as (successor, _):
        adopted = successor.adopt(dict.fromkeys(("engine-0", "engine-1"), ("place 0", "spare")), wanted=("place 0",))
        assert list(adopted) == ["engine-0"]
        assert "engine-1" not in successor
        successor.end_all()
