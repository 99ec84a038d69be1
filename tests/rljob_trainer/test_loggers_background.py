"""Trackers that fail, hang or print, each in its own process."""

import socket
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog

from rljob_trainer.loggers import LoggerSet, background
from rljob_trainer.loggers.background import BackgroundLogger
from rljob_trainer.progress.run_info import RunInfo
from tests.rljob_trainer.run_support import environment_of, wait_until

TRACKERS = """
import atexit, os, subprocess, sys, time

class Quiet:
    def start(self, run):
        self.file = run.directory / "seen.txt"
    def write(self, *values):
        with self.file.open("a") as file:
            print(*values, file=file)
    def log(self, step, metrics):
        self.write(step, metrics["loss"])
    def finish(self, status):
        self.write(status)

class Failing(Quiet):
    def log(self, step, metrics):
        if step == 3:
            raise ConnectionError("no network")
        super().log(step, metrics)

class FailingAtTheEnd(Quiet):
    def finish(self, status):
        raise ConnectionError("no network")

class Crashing(Quiet):
    def log(self, step, metrics):
        os.abort()

class Hanging(Quiet):
    def start(self, run):
        super().start(run)
        self.write(subprocess.Popen(["sleep", "600"]).pid)
        time.sleep(600)

class Talking(Quiet):
    def finish(self, status):
        print("to standard output")
        print("to standard error", file=sys.stderr)
        atexit.register(time.sleep, 600)
        super().finish(status)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunInfo:
    (tmp_path / "trackers.py").write_text(TRACKERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return RunInfo("reverse-text", "u1", tmp_path / "run")


def logged(
    name: str, run: RunInfo, steps: int = 5, ready: Callable[[], object] = lambda: True
) -> list[MutableMapping[str, Any]]:
    """Log so many steps to a tracker, once it is ready. Returns the warnings."""
    with structlog.testing.capture_logs() as warnings:
        logger = BackgroundLogger("tracker", f"trackers:{name}", run, {})
        wait_until(ready, 60.0)
        for step in range(1, steps + 1):
            logger.log(step, {"loss": step / 4})
        logger.close("done")
        logger.join()
    return warnings


def seen(run: RunInfo) -> list[str]:
    file = run.directory / "seen.txt"
    return file.read_text().splitlines() if file.exists() else []


def test_every_step_arrives_in_order_before_the_end(run: RunInfo) -> None:
    assert logged("Quiet", run, 50) == []
    assert seen(run) == [*(f"{step} {step / 4}" for step in range(1, 51)), "done"]


@pytest.mark.parametrize(
    ("name", "left"), [("Failing", ["1 0.25", "2 0.5"]), ("FailingAtTheEnd", [f"{n} {n / 4}" for n in range(1, 6)])]
)
def test_a_tracker_that_fails_is_left_out_after_one_warning(run: RunInfo, name: str, left: list[str]) -> None:
    (warning,) = logged(name, run)
    said = warning["event"], warning["tracker"], warning["error"]
    assert said == ("logger_failed", "tracker", "ConnectionError: no network")
    assert seen(run) == left


def test_a_tracker_that_crashes_takes_nothing_with_it(run: RunInfo) -> None:
    (warning,) = logged("Crashing", run)
    assert warning["event"] == "logger_failed"


def test_a_tracker_that_hangs_holds_up_neither_the_training_nor_its_end(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FINISH_SECONDS", 4.0)
    # More than the queue and the pipe to the process hold together.
    warnings = logged("Hanging", run, background.QUEUE_STEPS * 10, ready=lambda: seen(run))

    assert [each["event"] for each in warnings] == ["logger_too_slow", "logger_abandoned"]
    assert seen(run)[0].isdigit(), "it has started a process"
    wait_until(lambda: not left_of(run), 60.0)


def test_a_trackers_output_goes_to_its_log_and_its_exit_handlers_do_not_run(
    run: RunInfo, capfd: pytest.CaptureFixture[str]
) -> None:
    assert logged("Talking", run) == []
    assert seen(run)[-1] == "done"
    assert capfd.readouterr() == ("", "")
    assert set((run.directory / "logs" / "tracker.log").read_text().splitlines()) == {
        "to standard output",
        "to standard error",
    }


def test_a_server_that_never_answers_ends_with_the_run(run: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb would wait 90 seconds, and its own process for days."""
    monkeypatch.setattr(background, "FINISH_SECONDS", 6.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        monkeypatch.setenv("WANDB_MODE", "online")
        with structlog.testing.capture_logs() as warnings:
            loggers = LoggerSet(["wandb"], run)
            loggers.log(1, {"reward/mean": 0.5})
            loggers.finish("done")
    assert [each["event"] for each in warnings] == ["logger_abandoned"]
    wait_until(lambda: not left_of(run), 60.0)


def left_of(run: RunInfo) -> list[psutil.Process]:
    """The processes of this test's trackers, wherever they are now."""
    mark = str(run.directory.parent)
    return [each for each in psutil.process_iter() if mark in environment_of(each).get("PYTHONPATH", "")]
