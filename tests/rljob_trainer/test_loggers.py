import importlib.util
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import structlog
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_trainer.errors import JobError
from rljob_trainer.loggers import LoggerSet, background
from rljob_trainer.loggers.background import BackgroundLogger
from rljob_trainer.progress.run_info import RunInfo


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return RunInfo("reverse-text", "u1", tmp_path)


def test_tensorboard_files_hold_the_metrics(run: RunInfo) -> None:
    loggers = LoggerSet(["console", "tensorboard"], run)
    for step in (1, 2, 3):
        loggers.log(step, {"reward/mean": step / 4, "actor/kl": 0.5})
    loggers.finish("done")

    events = EventAccumulator(str(run.directory / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert len(events.Scalars("actor/kl")) == 3


def test_tensorboard_drops_the_steps_that_a_resumed_attempt_runs_again(run: RunInfo) -> None:
    for resumed, value in ((0, 0.25), (2, 0.75)):
        loggers = LoggerSet(["tensorboard"], RunInfo(run.name, run.uid, run.directory, resumed_step=resumed))
        for step in range(resumed + 1, resumed + 4):
            loggers.log(step, {"reward/mean": value})
        loggers.finish("stopped")

    events = EventAccumulator(str(run.directory / "tensorboard")).Reload()
    shown = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert shown == [(1, 0.25), (2, 0.25), (3, 0.75), (4, 0.75), (5, 0.75)]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_names_the_field_and_the_extra(
    run: RunInfo, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "rljob_trainer.loggers.find_spec", lambda package: None if package == name else find_spec(package)
    )
    with pytest.raises(JobError, match=rf"pip install 'rljob-trainer\[{name}\]'") as raised:
        LoggerSet(["tensorboard", name], run)
    assert raised.value.field == "spec.training.loggers[1]"
    assert not (run.directory / "tensorboard").exists()


class Tracker:
    """Fails or waits where it is told to."""

    def __init__(self, *, fails_at: int | None = None, gate: threading.Event | None = None) -> None:
        self.seen: list[int] = []
        self.ended: str | None = None
        self._fails_at, self._gate = fails_at, gate

    def start(self, run: RunInfo) -> None:
        if self._gate is not None:
            self._gate.wait()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._fails_at:
            raise ConnectionError("no network")
        self.seen.append(step)

    def finish(self, status: str) -> None:
        self.ended = status


def test_every_step_arrives_in_order_before_the_end(run: RunInfo) -> None:
    tracker = Tracker()
    logger = BackgroundLogger("tracker", tracker, run)
    for step in range(50):
        logger.log(step, {})
    logger.close("done")
    logger.join()

    assert (tracker.seen, tracker.ended) == (list(range(50)), "done")


def test_a_tracker_that_fails_is_left_out_after_one_warning(run: RunInfo) -> None:
    tracker = Tracker(fails_at=3)
    with structlog.testing.capture_logs() as logs:
        logger = BackgroundLogger("tracker", tracker, run)
        for step in range(1, 100):
            logger.log(step, {})
        logger.close("done")
        logger.join()

    assert [(entry["event"], entry["error"]) for entry in logs] == [("logger_failed", "ConnectionError: no network")]
    assert (tracker.seen, tracker.ended) == ([1, 2], None)


def test_a_tracker_that_hangs_holds_up_neither_the_training_nor_its_end(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.05)
    gate = threading.Event()
    with structlog.testing.capture_logs() as logs:
        logger = BackgroundLogger("tracker", Tracker(gate=gate), run)
        for step in range(background.QUEUE_STEPS + 10):
            logger.log(step, {})
        logger.close("done")
        logger.join()
    gate.set()

    assert [entry["event"] for entry in logs] == ["logger_too_slow", "logger_abandoned"]
