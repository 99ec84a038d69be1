"""`rljob stop` before a volume on which a driver runs, or none does. What drivers do about it: test_run_resume.py."""

import json
import subprocess
import sys
import threading
import time

import pytest

from rljob_trainer.controller.attempt import claim, record_exit
from rljob_trainer.errors import StoppedOnRequest
from rljob_trainer.volume import Volume, write_json


def rljob_stop(volume: Volume, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rljob_trainer.cli", "stop", str(volume.root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def running(volume: Volume) -> None:
    claim(volume, 1)
    write_json(volume.progress, {"step": 3})


def test_it_asks_the_driver_and_waits_for_its_end(tmp_path):
    volume = Volume(tmp_path)
    running(volume)

    def driver() -> None:
        while not volume.request.exists():
            time.sleep(0.02)
        record_exit(volume, 1, StoppedOnRequest("saved"))

    thread = threading.Thread(target=driver)
    thread.start()
    done = rljob_stop(volume, "--wait", "60s")
    thread.join()
    assert (done.returncode, done.stdout) == (0, "attempt 1 has stopped\n")
    asked = json.loads(volume.request.read_text())
    assert (asked["checkpoint"], asked["stop"]) == (True, True)


def test_it_does_not_wait_unless_it_is_told_to(tmp_path):
    volume = Volume(tmp_path)
    running(volume)
    done = rljob_stop(volume)
    assert done.returncode == 0
    assert done.stdout.startswith("attempt 1 is asked to stop")
    assert volume.request.exists()


def test_a_driver_that_does_not_end_in_time_is_an_error(tmp_path):
    volume = Volume(tmp_path)
    running(volume)
    done = rljob_stop(volume, "--wait", "300ms")
    assert (done.returncode, done.stderr) == (75, "error: attempt 1 did not stop within 300ms\n")


@pytest.mark.parametrize("begun", [False, True])
def test_where_no_driver_runs_there_is_nothing_to_stop(tmp_path, begun):
    volume = Volume(tmp_path)
    write_json(volume.job, {"name": "first"})
    if begun:
        running(volume)
        record_exit(volume, 1, None)
    done = rljob_stop(volume)
    assert (done.returncode, done.stdout) == (0, f"no driver runs in {tmp_path}\n")
    assert not volume.request.exists()


def test_a_folder_without_a_run_is_named(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        done = rljob_stop(Volume(folder))
        assert (done.returncode, done.stderr) == (
            65, f"error: {folder} holds no run; give a run's folder, such as runs/NAME\n"
        )  # fmt: skip
    assert not any(tmp_path.iterdir())
