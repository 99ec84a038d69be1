"""What `rljob run` does when a driver fails before it trains: no step is needed, so these runs are brief."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.volume import Volume
from tests.rljob_trainer.run_support import (
    GONE_SECONDS,
    Machine,
    exit_record,
    finish,
    interrupt,
    machine,
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
    driver.wait(GONE_SECONDS)


@pytest.mark.slow
def test_without_a_budget_it_gives_up_at_once_and_says_why(place: Machine, tmp_path: Path):
    run = tmp_path / "run"
    process = place.start_run(write_job(tmp_path, recovery={"maxRestarts": 0}), "--dir", run)
    kill_driver(place, run, 1)
    ended = finish(process)
    assert ended.code == 75
    assert "error: spec.recovery.maxRestarts is 0, so nothing is restarted: driver ended by SIGKILL" in ended.out
    assert not Volume(run).claim(2).exists()


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_before_a_restart(place: Machine, tmp_path: Path):
    run, backoff = tmp_path / "run", {"initial": "300s", "max": "300s"}
    process = place.start_run(write_job(tmp_path, recovery={"backoff": backoff}), "--dir", run)
    kill_driver(place, run, 1)
    kill_driver(place, run, 2)  # the first restart comes at once
    time.sleep(1.0)  # it waits
    interrupt(process)
    ended = finish(process)
    assert ended.code == 76
    assert "restarting the driver in 300 s, restart 2 of 5 without a checkpoint" in ended.out
    assert not Volume(run).claim(3).exists()


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
