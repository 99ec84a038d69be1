"""Who of the workers is alive, and what a driver waits for. Real Ray, one cluster for the module."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from rljob_trainer.errors import EngineLost, InfrastructureError, RankLost, RewardsLost, WorkerLost
from rljob_trainer.workers import heartbeats as hosting_pulse
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.roster import Roster
from rljob_trainer.workers.waiting import cause_among, wait_for, wait_for_engines, wait_together
from rljob_trainer.workers.worker import Answer, arriving
from tests.rljob_trainer.hosting_support import (
    PATIENT,
    SECONDS,
    SILENT_AFTER,
    Notes,
    driver,
    first_attempt,
    loss_of,
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


def test_a_worker_answers_while_it_works_and_says_what_it_does(mine: tuple[Roster, Heartbeats]):
    roster, heartbeats = mine
    worker = start(roster, "rank-0")
    assert value(worker.call(Notes.tell, "started")) == ["started"]
    resting = worker.call(Notes.rest, 3.0)
    beside = worker.call_beside("background", Notes.tell, "beside")
    assert value(beside) == ["started", "beside"]
    time.sleep(2.5)
    heartbeats.check()
    assert heartbeats.doing().startswith("rank-0: rest for ")
    assert ", 0 claims)" in heartbeats.doing()
    value(resting)


def test_workers_that_die_are_named(mine: tuple[Roster, Heartbeats]):
    roster, heartbeats = mine
    kinds = {"rank-1": RankLost, "engine-1": EngineLost, "rewards": RewardsLost}
    workers = {name: start(roster, name) for name in kinds}
    processes = {name: process_of(worker) for name, worker in workers.items()}
    for name, kind in kinds.items():
        processes[name].kill()
        found = loss_of(heartbeats)
        assert type(found) is kind
        assert found.worker == name
        assert found.message.startswith(f"{name} died: ")
        roster.end(workers[name])
    heartbeats.check()


def test_a_call_names_the_worker_that_died_under_it_and_none_that_waited_for_its_answer(
    mine: tuple[Roster, Heartbeats],
):
    roster, heartbeats = mine
    first, second = start(roster, "engine-0"), start(roster, "rewards")
    process = process_of(first)
    asked = first.call(Notes.rest, SECONDS)
    behind = second.call(Notes.tell, arriving(asked))  # type: ignore[arg-type]  # its value never arrives
    process.kill()
    with pytest.raises(EngineLost, match="engine-0 died: ") as found:
        wait_for(asked, SECONDS, "it")  # no heartbeat says so
    assert found.value.worker == "engine-0"
    with pytest.raises(InfrastructureError) as following:
        wait_for(behind, SECONDS, "it")
    assert not isinstance(following.value, WorkerLost)
    roster.end(first)
    heartbeats.check()


def test_nobody_is_told_of_the_end_of_one_that_is_not_vital(mine: tuple[Roster, Heartbeats]):
    roster, heartbeats = mine
    spare = start(roster, "engine-1")
    heartbeats.watch(spare, vital=False)
    process_of(spare).kill()
    until(lambda: heartbeats.died("engine-1"))
    heartbeats.check()
    assert heartbeats.diagnose() is None


def test_a_frozen_worker_is_named_after_its_time_and_one_that_starts_is_not(mine: tuple[Roster, Heartbeats]):
    roster, heartbeats = mine
    frozen = start(roster, "rank-1")
    process = process_of(frozen)
    time.sleep(1.5)  # the heartbeats has heard it
    start(roster, "engine-1", slow_start=60.0)
    begin = time.monotonic()
    process.suspend()
    found = loss_of(heartbeats)
    assert (type(found), found.worker) == (RankLost, "rank-1")
    assert "has not answered for" in found.message
    assert time.monotonic() - begin >= SILENT_AFTER
    assert heartbeats.diagnose() is not None


@pytest.mark.slow
def test_a_spare_that_freezes_as_it_is_put_to_work_is_missed(mine: tuple[Roster, Heartbeats]):
    roster, heartbeats = mine
    spare = start(roster, "engine-1")
    heartbeats.watch(spare, vital=False)
    spare.call(Notes.rest, 60.0)
    until(lambda: "engine-1: rest" in heartbeats.doing())
    process = process_of(spare)
    process.suspend()
    try:
        heartbeats.watch(spare)  # it is not asked to answer for a first time, as one that imports is
        assert loss_of(heartbeats).worker == "engine-1"
    finally:
        process.kill()


@pytest.mark.slow
def test_one_that_freezes_before_the_first_round_of_questions_is_missed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosting_pulse, "BEAT_SECONDS", 6.0)  # of questions, so that it works and freezes before it
    with driver(1, SILENT_AFTER) as (roster, heartbeats):
        worker = start(roster, "engine-0")
        first = heartbeats._watched["engine-0"].asked  # other questions may be answered before it, by another thread
        process = process_of(worker)
        assert first is not None
        value(first)
        process.suspend()
        try:
            assert loss_of(heartbeats).worker == "engine-0"
        finally:
            process.kill()
            roster.end_all()


@pytest.mark.slow
def test_one_that_answers_and_keeps_others_waiting_is_named(monkeypatch):
    monkeypatch.setattr(hosting_pulse, "STUCK", 0.6)
    with first_attempt(PATIENT) as (roster, heartbeats):
        workers = [start(roster, f"rank-{number}") for number in range(3)]
        value([worker.beat() for worker in workers])
        workers[0].call(Notes.meet, 1000)
        workers[1].call(Notes.meet, 1000, 0.2)  # slow, but it goes on
        workers[2].call(Notes.meet, 7)
        found = loss_of(heartbeats)
    assert (type(found), found.worker) == (RankLost, "rank-2")
    assert re.match(r"rank-2 hangs in meet: others have waited for it for \d+ s \(pid \d+, 0 claims\)", found.message)


DRIVER = f"""
import sys, ray
from rljob_trainer.errors import RLJobError
from tests.rljob_trainer.hosting_support import Notes, driver, start, value

ray.init(address=sys.argv[1], namespace="hosting", log_to_driver=False, logging_level="error")
try:
    with driver(1, {SILENT_AFTER}) as (roster, heartbeats):
        worker = start(roster, "rank-9")
        while True:
            value(worker.call(Notes.rest, 0.05))
            heartbeats.check()
            print("alive", flush=True)
except RLJobError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
def test_a_driver_that_was_frozen_takes_nobody_for_dead_and_leaves_when_it_is_replaced():
    command = [sys.executable, "-c", DRIVER, ray.get_runtime_context().gcs_address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as frozen:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "alive\n"
        time.sleep(1.5)  # its heartbeats has heard the worker
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(2 * SILENT_AFTER)
        frozen.send_signal(signal.SIGCONT)
        time.sleep(SILENT_AFTER)
        assert frozen.poll() is None, frozen.stdout.read()
        with driver(2) as (newer, _):
            adopted = newer.adopt({"rank-9": ["s"]})
            assert frozen.wait(SECONDS) == 77
            assert "attempt 2 has taken over from attempt 1" in frozen.stdout.read()
            assert value(adopted["rank-9"].call(Notes.tell, "by the newer"))[-1] == "by the newer"
            newer.end_all()


def test_an_engine_that_fails_in_a_weight_update_is_lost(mine: tuple[Roster, Heartbeats]):
    roster, _ = mine
    engines = [start(roster, f"engine-{number}") for number in range(2)]
    asked: list[Answer[Any]] = [engines[0].call(Notes.tell, "a"), engines[1].call(Notes.refuse, "no such parameter")]
    with pytest.raises(EngineLost, match=r"engine-1 failed to take weights: no such parameter") as found:
        wait_for_engines(asked, SECONDS, "take weights")
    assert found.value.worker == "engine-1"


def test_who_is_in_a_collective_operation_that_another_never_joined_is_not_waited_for():
    """As ranks after a driver that died between its calls to them; those that are just busy may take their time."""
    with first_attempt(PATIENT) as (roster, heartbeats):
        ranks = [start(roster, f"rank-{number}") for number in range(2)]
        value([rank.beat() for rank in ranks])
        together = [rank.call(Notes.rest, 5.0) for rank in ranks]
        assert wait_together(together, SECONDS, 4.0, "them") == [None, None]
        until(lambda: heartbeats.doing() == "no worker is busy")  # the last beats may be of the rest before
        apart = [ranks[0].call(Notes.rest, 2 * SECONDS), ranks[1].call(Notes.rest, 0.0)]
        until(lambda: "rank-0: rest" in heartbeats.doing())
        with pytest.raises(InfrastructureError, match=r"waited 1 s for them \(rank-0: rest for "):
            wait_together(apart, SECONDS, 1.0, "them", lambda: heartbeats.check("rank"), heartbeats.doing)


def test_of_calls_that_failed_together_one_may_know_whose_fault_it_is(mine: tuple[Roster, Heartbeats]):
    """As ranks of one sync group do: the first delivers, the others only hear that it failed."""
    roster, _ = mine
    first, second = start(roster, "rank-0"), start(roster, "rank-1")
    value([first.beat(), second.beat()])
    found = cause_among([second.call(Notes.refuse, "the first rank failed"), first.call(Notes.accuse, "engine-3")])
    assert isinstance(found, EngineLost)
    assert found.worker == "engine-3"
    assert cause_among([second.call(Notes.refuse, "the first rank failed")]) is None
