"""How `rljob run` handles drivers that fail before they train; no step is needed, so these runs are short."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rljob_trainer.local.stop import Stop
from rljob_trainer.progress.history import read_metrics
from rljob_trainer.progress.overview import look_at
from rljob_trainer.volume import Volume, write_json
from tests.rljob_trainer.run_support import (
    GONE_SECONDS,
    RLJOB,
    Machine,
    exit_record,
    finish,
    has_ended,
    interrupt,
    machine,
    wait_for_step,
    wait_until,
    worker,
    write_job,
)

DRIVER = "rljob_trainer.cli driver"
RAY_HEAD = "rljob_trainer.local.ray_head"


@pytest.fixture
def place() -> Iterator[Machine]:
    with machine() as made:
        yield made


def kill_driver(place: Machine, run: Path, attempt: int) -> None:
    wait_until(Volume(run).claim(attempt).exists)
    driver = worker(place, DRIVER)
    driver.kill()
    wait_until(lambda: has_ended(driver), GONE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["Ctrl-C", "rljob stop"])
def test_the_wait_before_a_restart_can_be_ended(place: Machine, tmp_path: Path, way: str):
    run, backoff = tmp_path / "run", {"initial": "300s", "max": "300s"}
    process = place.start_run(write_job(tmp_path, recovery={"backoff": backoff}), "--dir", run)
    kill_driver(place, run, 1)
    kill_driver(place, run, 2)  # the first restart comes at once
    time.sleep(1.0)  # it waits
    if way == "Ctrl-C":
        interrupt(process)
    else:
        stop_in_time(run)
    ended = finish(process)
    assert ended.code == 76
    assert "restarting the driver in 300 s, restart 2 of 5 without a checkpoint" in ended.out
    assert not Volume(run).claim(3).exists()
    assert look_at(run).state == "stopped"


def stop_in_time(run: Path) -> None:
    subprocess.run([*RLJOB, "stop", str(run), "--wait", f"{GONE_SECONDS:.0f}s"], check=True)


@pytest.mark.slow
def test_a_request_to_stop_outlives_the_driver_that_could_not_hear_it(place: Machine, tmp_path: Path):
    run = tmp_path / "run"
    process = place.start_run(write_job(tmp_path, training={"steps": 5000}), "--dir", run)
    wait_for_step(run, 2, process)
    driver = worker(place, DRIVER)
    driver.suspend()
    write_json(Volume(run).request, {"id": "one", "checkpoint": True, "stop": True})
    time.sleep(1.0)  # the supervisor hears it
    driver.kill()
    ended = finish(process)
    assert ended.code == 75, "it was not checkpointed"
    assert not Volume(run).claim(2).exists(), "no attempt after a request to stop"


class Terminated:
    """A driver that counts the SIGTERMs that it receives."""

    times = 0

    def terminate(self) -> None:
        self.times += 1


def test_a_request_and_one_signal_are_one_wish_to_stop():
    driver = Terminated()
    stop = Stop(driver=driver)  # type: ignore[arg-type]
    assert not stop.asked
    stop.request()
    stop.interrupt(signal.SIGTERM)
    assert (stop.asked, driver.times, stop.record().code) == (True, 1, 76)
    stop.interrupt(signal.SIGTERM)
    assert (driver.times, stop.record().code) == (1, 143)


@pytest.mark.slow
def test_a_run_that_waits_for_a_reward_model_hears_a_request_to_stop(place: Machine, tmp_path: Path):
    run, model = tmp_path / "run", {"name": "rm", "path": "org/reward", "kind": "classifier", "gpusPerReplica": 0}
    file = write_job(tmp_path, rewards={"functions": [], "models": [model]})
    process = place.start_run(file, "--dir", run, "--reward-model", "rm=http://127.0.0.1:9")  # no server listens there
    wait_until((run / "logs" / "agent.log").exists)
    time.sleep(1.0)  # it waits
    stop_in_time(run)
    ended = finish(process)
    assert "waiting for" in ended.out
    assert ended.code == 76


def raylets(place: Machine) -> list[psutil.Process]:
    return [each for each in place.processes() if each.name() == "raylet"]


@pytest.mark.slow
def test_ray_may_start_as_slowly_as_the_machine_is(place: Machine, tmp_path: Path):
    """Longer than the 30 s that Ray itself waits for its raylet, which runs now and then."""
    run = tmp_path / "run"
    process = place.start_run(write_job(tmp_path), "--dir", run)
    wait_until(lambda: raylets(place))
    (raylet,) = raylets(place)
    for _ in range(4):
        raylet.suspend()
        time.sleep(8.5)  # the head ends a Ray whose raylet is stopped for 10 s
        raylet.resume()
        time.sleep(0.3)  # the head looks five times a second
        if list(place.temporary.glob("*/address")):  # these moments sufficed
            break
    assert finish(process).code == 0
    assert not Volume(run).claim(2).exists()


WAITS_FOR_EVER = """
from rljob_trainer.local import machine
machine.END_SECONDS = 1e6
from rljob_trainer.cli import main
main()
"""


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_start_at_once(place: Machine, tmp_path: Path):
    """Whatever does not end by itself: here a Ray that is frozen before it is there."""
    run = tmp_path / "run"
    process = place.start([sys.executable, "-P", "-c", WAITS_FOR_EVER, "run", write_job(tmp_path), "--dir", run])
    wait_until(lambda: [each for each in place.processes() if RAY_HEAD in each.cmdline()])
    worker(place, RAY_HEAD).suspend()
    wait_until(Volume(run).claim(1).exists)
    interrupt(process)
    wait_until(Volume(run).exit_record(1).exists)
    interrupt(process)
    ended = finish(process)
    assert (ended.code, exit_record(run)["reason"]) == (76, "StoppedOnRequest")
    assert "Traceback" not in ended.out


@pytest.mark.slow
def test_a_run_whose_holder_of_ray_and_gcs_are_frozen_gets_another_ray(place: Machine, tmp_path: Path):
    run = tmp_path / "run"
    process = place.start_run(write_job(tmp_path, training={"steps": 40}, checkpoint={"everySteps": 4}), "--dir", run)
    wait_until(lambda: bool(list(run.glob("checkpoints/step-4-*/manifest.json"))))
    holder = worker(place, RAY_HEAD)
    for each in (holder, *(child for child in holder.children() if child.name() == "gcs_server")):
        each.suspend()
    worker(place, DRIVER).kill()
    ended = finish(process)
    assert ended.code == 0
    assert "the head of Ray was stopped for 10 s" in ended.out
    assert [line["step"] for line in read_metrics(run)] == list(range(1, 41))


@pytest.mark.slow
def test_a_driver_that_is_frozen_is_ended_and_a_rule_may_give_up(place: Machine, tmp_path: Path):
    run = tmp_path / "run"
    recovery: dict[str, Any] = {"hangAfter": "1s", "rules": [{"onReasons": ["DriverHung"], "action": "give_up"}]}
    process = place.start_run(write_job(tmp_path, recovery=recovery), "--dir", run)
    wait_until(Volume(run).progress.exists)
    time.sleep(1.0)  # the supervisor has seen it
    worker(place, DRIVER).suspend()
    ended = finish(process)
    assert ended.code == 75
    assert "the driver gave no sign of life for" in ended.out
    assert not Volume(run).claim(2).exists(), "the rule says so"
