"""Workers that outlive their driver: claimed, fenced, watched, left alone. Real Ray, one cluster for the module."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from rljob_trainer.controller.attempt import check_not_superseded, claim
from rljob_trainer.errors import EngineLost, FencedError, InfrastructureError, RankLost, RewardsLost, WorkerLost
from rljob_trainer.hosting import pulse as hosting_pulse
from rljob_trainer.hosting import roster as hosting_roster
from rljob_trainer.hosting.host import Host, HostSettings
from rljob_trainer.hosting.pulse import Pulse
from rljob_trainer.hosting.roster import Roster, Worker
from rljob_trainer.volume import Volume
from rljob_trainer.waiting import loss_among, wait_for, wait_for_engines, wait_together
from tests.rljob_trainer.ray_support import own_ray

SECONDS = 100.0
PATIENT = 15.0
"""Silence that a driver bears where the test is not about silence."""
SILENT_AFTER = 5.0

GONE_SECONDS = 60.0
"""Ray forces a process that is frozen after 5 s."""


class Notes:
    """The work: remembers what it was told."""

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

    def count(self, upto: int) -> Iterator[int]:
        yield from (number for number in range(upto))


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with own_ray("hosting"):
        yield


@contextmanager
def driver(
    attempt: int, silent_after: float = PATIENT, leave_after: float = 300.0, fence: Callable[[], None] = lambda: None
) -> Iterator[tuple[Roster, Pulse]]:
    """What an attempt has; it leaves its workers behind."""
    pulse = Pulse(silent_after)
    try:
        yield Roster(attempt, leave_after, pulse, fence), pulse
    finally:
        pulse.close()


@pytest.fixture
def mine() -> Iterator[tuple[Roster, Pulse]]:
    """A first attempt, whose workers end with it."""
    with driver(1, SILENT_AFTER) as (roster, pulse):
        yield roster, pulse
        roster.end_all()


def start(roster: Roster, name: str, signature: str = "s", slow_start: float = 0.0) -> Worker:
    return roster.start(name, signature, NoteHost, {}, slow_start)


def value(reference: Any) -> Any:
    return wait_for(reference, SECONDS, "a worker of a test")


def process_of(worker: Worker) -> psutil.Process:
    return psutil.Process(value(worker.ask("beat")).pid)


def loss_of(pulse: Pulse) -> WorkerLost:
    """Waits until the pulse knows somebody lost."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            pulse.check()
        except WorkerLost as found:
            return found
        time.sleep(0.05)
    raise TimeoutError("nobody is lost")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ------------------------------------------------------------------ fencing


def test_a_claimed_worker_obeys_the_newer_attempt_alone(mine: tuple[Roster, Pulse]):
    roster, pulse = mine
    old = start(roster, "engine-0")
    assert value(old.call("tell", "first")) == ["first"]
    with driver(2) as (newer, _):
        new = newer.adopt({"engine-0": ["s"]})["engine-0"]
        assert value(new.call("tell", "second")) == ["first", "second"], "it kept what it held"
        assert [ray.get(item) for item in new.stream("count", 3)] == [0, 1, 2]
        refused: list[Callable[[], Any]] = [
            lambda: value(old.call("rest", 0.0)),
            lambda: value(old.ask("beat")),
            lambda: value(old.ask("claim")),
            lambda: [value(item) for item in old.stream("count", 3)],
        ]
        for call in refused:
            with pytest.raises(FencedError, match="attempt 2 has taken over from attempt 1"):
                call()
        assert value(old.call("tell", "of a replaced driver"))[-1] == "of a replaced driver", "harmless stays allowed"
        assert value(new.ask("beat")).detail == ", 1 claims"
        pulse.check()  # being refused is no loss: the old driver's next call says what happened


def test_a_spare_that_freezes_as_it_is_put_to_work_is_missed(mine: tuple[Roster, Pulse]):
    roster, pulse = mine
    spare = start(roster, "engine-1")
    pulse.watch(spare, vital=False)
    spare.call("rest", 60.0)
    until(lambda: "engine-1: rest" in pulse.doing())
    process = process_of(spare)
    process.suspend()
    try:
        pulse.watch(spare)  # it is not asked to answer for a first time, as one that imports is
        assert loss_of(pulse).worker == "engine-1"
    finally:
        process.kill()


def test_one_that_freezes_before_the_first_round_of_questions_is_missed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hosting_pulse, "BEAT_SECONDS", 6.0)  # of questions, so that it works and freezes before it
    with driver(1, SILENT_AFTER) as (roster, pulse):
        worker = start(roster, "engine-0")
        value(worker.call("tell", "it is past its imports"))
        process = process_of(worker)
        process.suspend()
        try:
            assert loss_of(pulse).worker == "engine-0"
        finally:
            process.kill()
            roster.end_all()


def test_a_worker_answers_while_it_works_and_says_what_it_does(mine: tuple[Roster, Pulse]):
    roster, pulse = mine
    worker = start(roster, "rank-0")
    assert value(worker.call("tell", "started")) == ["started"]
    resting = worker.call("rest", 3.0)
    beside = worker.call("tell", "beside", group="background")
    assert value(beside) == ["started", "beside"]
    time.sleep(2.5)
    pulse.check()
    assert pulse.doing().startswith("rank-0: rest for ")
    assert ", 0 claims)" in pulse.doing()
    value(resting)


@pytest.mark.slow
def test_only_the_workers_that_can_stand_in_are_taken_over(mine: tuple[Roster, Pulse]):
    roster, _ = mine
    workers = {name: start(roster, name, "mine") for name in ("rank-0", "rank-1", "rank-2", "rank-3")}
    processes = {name: process_of(worker) for name, worker in workers.items()}
    processes["rank-2"].kill()
    processes["rank-3"].suspend()
    with driver(2) as (newer, pulse):
        wanted = {f"rank-{i}": ["another"] if i == 1 else ["mine", "another"] for i in range(5)}
        adopted = newer.adopt(wanted)
        assert {name: worker.signature for name, worker in adopted.items()} == {"rank-0": "mine"}
        _, left = psutil.wait_procs(list(processes.values()), timeout=GONE_SECONDS)
        assert left == [processes["rank-0"]], "those of others, of the dead and of the frozen are gone"
        pulse.check()
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
    """Ray would do it for whoever asks, and its workers are another's now."""
    volume = Volume(tmp_path)
    claim(volume, 1)
    with driver(1, fence=lambda: check_not_superseded(volume, 1)) as (old, _):
        worker = start(old, "rank-5")
        value(worker.ask("beat"))
        claim(volume, 2)
        with driver(2) as (newer, _):
            taken = newer.adopt({"rank-5": ["s"]})["rank-5"]
            refused: list[Callable[[], Any]] = [
                lambda: old.end(worker), lambda: old.kill("rank-5"), old.end_all, lambda: start(old, "rank-6")
            ]  # fmt: skip
            for act in refused:
                with pytest.raises(FencedError, match="attempt 2 has taken over from attempt 1"):
                    act()
            assert value(taken.call("tell", "alive")) == ["alive"]
            newer.end_all()


def test_a_name_that_is_taken_is_no_bug(mine: tuple[Roster, Pulse]):
    roster, _ = mine
    start(roster, "engine-3")
    with pytest.raises(InfrastructureError, match="engine-3 cannot be started: another one is still there"):
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


# ------------------------------------------------------------------ signs of life


def test_workers_that_die_are_named(mine: tuple[Roster, Pulse]):
    roster, pulse = mine
    kinds = {"rank-1": RankLost, "engine-1": EngineLost, "rewards": RewardsLost}
    workers = {name: start(roster, name) for name in kinds}
    processes = {name: process_of(worker) for name, worker in workers.items()}
    for name, kind in kinds.items():
        processes[name].kill()
        found = loss_of(pulse)
        assert type(found) is kind
        assert found.worker == name
        assert found.message.startswith(f"{name} died: ")
        roster.end(workers[name])
    pulse.check()


def test_a_frozen_worker_is_named_after_its_time_and_one_that_starts_is_not(mine: tuple[Roster, Pulse]):
    roster, pulse = mine
    frozen = start(roster, "rank-1")
    process = process_of(frozen)
    time.sleep(1.5)  # the pulse has heard it
    start(roster, "engine-1", slow_start=60.0)
    begin = time.monotonic()
    process.suspend()
    found = loss_of(pulse)
    assert (type(found), found.worker) == (RankLost, "rank-1")
    assert "has not answered for" in found.message
    assert time.monotonic() - begin >= SILENT_AFTER
    assert pulse.diagnose() is not None


@pytest.mark.slow
def test_one_that_answers_and_keeps_others_waiting_is_named(monkeypatch):
    monkeypatch.setattr(hosting_pulse, "STUCK", 0.6)
    with driver(1, PATIENT) as (roster, pulse):
        workers = [start(roster, f"rank-{number}") for number in range(3)]
        value([worker.ask("beat") for worker in workers])
        workers[0].call("meet", 1000)
        workers[1].call("meet", 1000, 0.2)  # slow, but it goes on
        workers[2].call("meet", 7)
        found = loss_of(pulse)
        roster.end_all()
    assert (type(found), found.worker) == (RankLost, "rank-2")
    assert re.match(r"rank-2 hangs in meet: others have waited for it for \d+ s \(pid \d+, 0 claims\)", found.message)


DRIVER = f"""
import sys, ray
from rljob_trainer.errors import RLJobError
from tests.rljob_trainer.test_hosting import driver, start, value

ray.init(address=sys.argv[1], namespace="hosting", log_to_driver=False, logging_level="error")
try:
    with driver(1, {SILENT_AFTER}) as (roster, pulse):
        worker = start(roster, "rank-9")
        while True:
            value(worker.call("rest", 0.05))
            pulse.check()
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
        time.sleep(1.5)  # its pulse has heard the worker
        frozen.send_signal(signal.SIGSTOP)
        time.sleep(2 * SILENT_AFTER)
        frozen.send_signal(signal.SIGCONT)
        time.sleep(SILENT_AFTER)
        assert frozen.poll() is None, frozen.stdout.read()
        with driver(2) as (newer, _):
            adopted = newer.adopt({"rank-9": ["s"]})
            assert frozen.wait(SECONDS) == 77
            assert "attempt 2 has taken over from attempt 1" in frozen.stdout.read()
            assert value(adopted["rank-9"].call("tell", "by the newer"))[-1] == "by the newer"
            newer.end_all()


def test_an_engine_that_fails_in_a_weight_update_is_lost(mine: tuple[Roster, Pulse]):
    roster, _ = mine
    engines = [start(roster, f"engine-{number}") for number in range(2)]
    asked = [(engines[0], engines[0].call("tell", "a")), (engines[1], engines[1].call("refuse", "no such parameter"))]
    with pytest.raises(EngineLost, match=r"engine-1 failed to take weights: no such parameter") as found:
        wait_for_engines(asked, SECONDS, "take weights")
    assert found.value.worker == "engine-1"


def test_who_is_in_a_collective_operation_that_another_never_joined_is_not_waited_for():
    """As ranks after a driver that died between its calls to them; those that are just busy may take their time."""
    with driver(1) as (roster, pulse):
        ranks = [start(roster, f"rank-{number}") for number in range(2)]
        value([rank.ask("beat") for rank in ranks])
        together = [rank.call("rest", 5.0) for rank in ranks]
        assert wait_together(together, SECONDS, 4.0, "them") == [None, None]
        apart = [ranks[0].call("rest", 2 * SECONDS), ranks[1].call("rest", 0.0)]
        until(lambda: "rank-0: rest" in pulse.doing())
        with pytest.raises(InfrastructureError, match=r"waited 1 s for them \(rank-0: rest for "):
            wait_together(apart, SECONDS, 1.0, "them", lambda: pulse.check("rank"), pulse.doing)
        roster.end_all()


def test_of_calls_that_failed_together_one_may_know_whose_fault_it_is(mine: tuple[Roster, Pulse]):
    """As ranks of one sync group do: the first delivers, the others only hear that it failed."""
    roster, _ = mine
    first, second = start(roster, "rank-0"), start(roster, "rank-1")
    value([first.ask("beat"), second.ask("beat")])
    found = loss_among([second.call("refuse", "the first rank failed"), first.call("accuse", "engine-3")])
    assert found is not None
    assert found.worker == "engine-3"
    assert loss_among([second.call("refuse", "the first rank failed")]) is None


def test_nobody_is_told_of_the_end_of_one_that_is_not_vital(mine: tuple[Roster, Pulse]):
    roster, pulse = mine
    spare = start(roster, "engine-1")
    pulse.watch(spare, vital=False)
    process_of(spare).kill()
    until(lambda: pulse.died("engine-1"))
    pulse.check()
    assert pulse.diagnose() is None


def test_a_takeover_takes_the_spare_along_that_answers_after_the_engine(mine: tuple[Roster, Pulse], monkeypatch):
    monkeypatch.setattr(hosting_roster, "LATE_SECONDS", 30.0)
    roster, _ = mine
    spare = start(roster, "engine-1", "spare")
    value(start(roster, "engine-0", "place 0").ask("beat"))
    process = process_of(spare)
    process.suspend()
    thaw = threading.Timer(0.2, process.resume)
    with driver(2) as (successor, _):
        thaw.start()
        adopted = successor.adopt(dict.fromkeys(("engine-0", "engine-1"), ("place 0", "spare")), wanted=("place 0",))
        assert sorted(adopted) == ["engine-0", "engine-1"]
        successor.end_all()


def test_takeover_waits_for_nobody_but_those_it_wants(mine: tuple[Roster, Pulse]):
    """A spare that imports for a minute keeps no driver from its engines."""
    roster, _ = mine
    value(start(roster, "engine-0", "place 0").ask("beat"))
    start(roster, "engine-1", "spare", slow_start=60.0)
    with driver(2) as (successor, _):
        adopted = successor.adopt(dict.fromkeys(("engine-0", "engine-1"), ("place 0", "spare")), wanted=("place 0",))
        assert list(adopted) == ["engine-0"]
        assert "engine-1" not in successor
        successor.end_all()
