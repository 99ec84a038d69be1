"""`rljob stop` before a volume on which a driver runs, or none does. What drivers do about it: test_run_resume.py."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rljob_trainer.attempt.claim import claim, record_exit
from rljob_trainer.cli.stop import stop
from rljob_trainer.errors import InfrastructureError, StoppedOnRequest
from rljob_trainer.local.lock import only_run_in
from rljob_trainer.progress.state import SILENT_AFTER
from rljob_trainer.volume import Volume, write_json
from tests.rljob_trainer.cli_support import Done, rljob


def rljob_stop(volume: Volume, *options: str) -> Done:
    return rljob("stop", volume.root, *options)


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
    assert (done.returncode, done.stdout) == (0, "attempt 1 has stopped, with 76 StoppedOnRequest\n")
    asked = json.loads(volume.request.read_text())
    assert (asked["checkpoint"], asked["stop"]) == (True, True)


@pytest.mark.parametrize("given", ["abc", "120", ""])
def test_a_wait_that_is_no_duration_is_a_wrong_call(tmp_path, given):
    done = rljob_stop(Volume(tmp_path), "--wait", given)
    assert done.returncode == 2
    assert f"Invalid value for '--wait': {given!r} is not a duration" in done.stderr


@contextmanager
def supervised_run(volume: Volume, code: int, reason: str) -> Iterator[None]:
    """As `rljob run`, which hears a request and ends; code 0: without a record, as one that is killed."""
    held = threading.Event()

    def supervisor() -> None:
        with only_run_in(volume):
            held.set()
            while not volume.request.exists():
                time.sleep(0.02)
            if code:
                write_json(volume.run_exit, {"code": code, "reason": reason, "message": "what happened"})

    thread = threading.Thread(target=supervisor)
    thread.start()
    held.wait()
    yield
    thread.join()


@pytest.mark.parametrize("begun", [False, True])
def test_it_asks_the_supervisor_and_waits_for_its_end_though_there_is_no_driver(tmp_path, begun):
    """Between two attempts there is no driver, or one that is frozen: `rljob run` hears the request instead."""
    volume = Volume(tmp_path)
    write_json(volume.job, {"name": "first"})
    if begun:
        running(volume)
        record_exit(volume, 1, RuntimeError("it failed"))
    with supervised_run(volume, 76, "StoppedOnRequest"):
        done = rljob_stop(volume, "--wait", "60s")
    assert (done.returncode, done.stdout) == (0, "the run has stopped, with 76 StoppedOnRequest\n")
    volume.request.unlink()
    done = rljob_stop(volume)
    assert (done.returncode, done.stdout) == (0, f"no driver runs in {tmp_path}\n"), "no process holds it"
    assert not volume.request.exists()


@pytest.mark.parametrize(
    ("code", "reason", "how"),
    [
        (75, "DriverHung", "with 75 DriverHung: what happened"),
        (0, "", "without an exit record: it was killed"),
    ],
)
def test_a_run_that_ends_otherwise_than_it_was_asked_to_is_an_error(tmp_path, code, reason, how):
    volume = Volume(tmp_path)
    running(volume)
    with supervised_run(volume, code, reason):
        done = rljob_stop(volume, "--wait", "60s")
    assert (done.returncode, done.stderr) == (75, f"error: the run has ended {how}\n")


def test_a_lock_that_cannot_be_read_does_not_say_that_the_run_has_ended(tmp_path, monkeypatch):
    volume = Volume(tmp_path)
    running(volume)
    answers = iter([True])
    monkeypatch.setattr("rljob_trainer.progress.state.supervised", lambda _: next(answers, None))
    with pytest.raises(InfrastructureError, match="the run did not stop within 1s"):
        stop(tmp_path, "1s")


def test_it_waits_no_longer_for_a_driver_that_was_killed_with_its_host(tmp_path):
    """As that of a head pod which was lost, for the pods of workers."""
    volume = Volume(tmp_path)
    running(volume)

    def host() -> None:
        while not volume.request.exists():
            time.sleep(0.02)
        last = time.time() - SILENT_AFTER
        os.utime(volume.progress, (last, last))

    thread = threading.Thread(target=host)
    thread.start()
    done = rljob_stop(volume, "--wait", "100s")
    thread.join()
    assert (done.returncode, done.stdout) == (0, "attempt 1 has stopped, without an exit record\n")


def test_it_does_not_wait_by_default(tmp_path):
    volume = Volume(tmp_path)
    running(volume)
    done = rljob_stop(volume)
    assert done.returncode == 0
    assert done.stdout.startswith("asked attempt 1 to stop")
    assert volume.request.exists()


def test_a_driver_that_does_not_end_in_time_is_an_error(tmp_path):
    volume = Volume(tmp_path)
    running(volume)
    done = rljob_stop(volume, "--wait", "300ms")
    assert done.returncode == 75
    assert done.stderr.startswith("error: attempt 1 did not stop within 300ms: ")


DRIVER = """
import sys, time
from pathlib import Path
from rljob_trainer.progress.presence import present
from rljob_trainer.volume import Volume
with present(Volume(Path(sys.argv[1])), 1):
    print("present", flush=True)
    time.sleep(600)
"""


@contextmanager
def driver_of(volume: Volume) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the first attempt's lock."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(volume.root)], stdout=subprocess.PIPE, text=True
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "present\n"
            yield driver
        finally:
            driver.kill()


def test_it_does_not_wait_for_a_killed_driver_of_this_host(tmp_path):
    volume = Volume(tmp_path)
    running(volume)
    with driver_of(volume) as driver:

        def kill() -> None:
            while not volume.request.exists():
                time.sleep(0.02)
            driver.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        done = rljob_stop(volume, "--wait", "600s")
        thread.join()
    assert done.stdout == "attempt 1 has stopped, without an exit record\n"
    assert rljob_stop(volume, "--wait", "600s").stdout == f"no driver runs in {tmp_path}\n"


def test_a_driver_of_another_host_may_live_though_its_lock_is_not_seen(tmp_path):
    volume = Volume(tmp_path)
    running(volume)
    volume.driver_lock(1).write_text("another")
    assert rljob_stop(volume, "--wait", "300ms").returncode == 75


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
