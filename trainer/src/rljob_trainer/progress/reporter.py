"""Write the driver's progress file."""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Self, get_args

import structlog

from rljob_api.v1alpha1 import Progress
from rljob_trainer.progress import names
from rljob_trainer.progress.eta import StepTimes
from rljob_trainer.progress.metrics import Stage
from rljob_trainer.progress.state import read_object
from rljob_trainer.volume import Volume, write_json

log = structlog.get_logger(__name__)

HEARTBEAT = 5.0
"""Seconds after which an unchanged file is written again: its age shows whether the driver lives."""

_MIN_INTERVAL = 0.2


class ProgressReporter:
    """Keeps control/progress.json (rljob_api.v1alpha1.Progress) up to date.

    A thread writes the newest state, at most five times per second and at least every HEARTBEAT seconds, so that
    training never waits for the volume. Call order:

        with ProgressReporter(volume) as progress:
            progress.phase("loading model")
            progress.begin(step=0, total_steps=60, supervised_steps=20)
            progress.phase("rollout")
            progress.step_done(line)                                  # the result of MetricsWriter.write
    """

    def __init__(self, volume: Volume) -> None:
        self._path = volume.progress
        self._state = _previous(volume)
        self._supervised_steps = 0
        self._supervised_stage: Stage = "sft"
        self._times = {stage: StepTimes() for stage in get_args(Stage)}
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_changes, name="progress", daemon=True)
        self._thread.start()

    def begin(self, *, step: int, total_steps: int, supervised_steps: int = 0, supervised_stage: Stage = "sft") -> None:
        """step: the last one before this attempt. supervised_steps: those of total_steps on given responses."""
        self._supervised_steps, self._supervised_stage = supervised_steps, supervised_stage
        stage, percent = supervised_stage if step < supervised_steps else "rl", _percent(step, total_steps)
        self._update(step=step, total_steps=total_steps, percent=percent, stage=stage, eta=None)

    def tolerate(self, nats: float) -> None:
        """Report the tolerance of differences between engine and trainer."""
        self._update(engine_tolerance=nats)

    def phase(self, name: str) -> None:
        """Begin a phase: "rollout", "rewards", "loading model" ..."""
        self._update(phase=name)

    def step_done(self, line: Mapping[str, Any]) -> None:
        """Finish a step. line: its metrics."""
        step, stage = line["step"], line["stage"]
        self._times[stage].add(line)
        measured = {
            "reward": line.get(names.REWARD_MEAN),
            "validation_reward": line.get(names.VALIDATION_REWARD),
            "response_tokens": line.get(names.RESPONSE_LENGTH_MEAN),
            "tokens_per_second": line.get(names.TOKENS_PER_SECOND),
            "engine_difference": line.get(names.ROLLOUT_LOG_PROB_DIFF_MEAN, line.get(names.SYNC_PROBE_MEAN)),
        }
        self._update(
            step=step,
            percent=_percent(step, self._state.total_steps),
            stage=stage,
            eta=self._eta(step),
            policy_version=int(line.get(names.POLICY_VERSION, self._state.policy_version)),
            **{name: _short(value) for name, value in measured.items() if value is not None},
        )

    def validated(self, reward: float) -> None:
        """Report a validation outside of a step."""
        self._update(validation_reward=_short(reward))

    def close(self) -> None:
        """Write the last state and stop."""
        if not self._closed.is_set():
            self._closed.set()
            self._changed.set()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _eta(self, step: int) -> datetime | None:
        """None before the first measured step of each remaining stage."""
        supervised = max(0, self._supervised_steps - step)
        parts = {self._supervised_stage: supervised, "rl": self._state.total_steps - step - supervised}
        seconds = [self._times[stage].remaining(steps) for stage, steps in parts.items() if steps > 0]
        known = [value for value in seconds if value is not None]
        if len(known) < len(seconds):
            return None
        return datetime.now(UTC) + timedelta(seconds=sum(known))

    def _update(self, **changes: Any) -> None:
        self._state = self._state.model_copy(update=changes)
        self._changed.set()

    def _write_changes(self) -> None:
        while not self._closed.is_set():
            self._changed.wait(HEARTBEAT)
            self._changed.clear()
            self._write()
            self._closed.wait(_MIN_INTERVAL)
        self._write()

    def _write(self) -> None:
        try:
            write_json(self._path, self._state.model_dump(mode="json", by_alias=True), may_be_lost=True)
        except OSError as error:
            # The next checkpoint or metrics line fails too and ends the attempt.
            log.warning("progress_not_written", path=str(self._path), error=str(error))


def _short(value: float) -> float:
    """Round to four digits for kubectl's columns."""
    return float(f"{value:.4g}")


def _percent(step: int, total_steps: int) -> float:
    return round(min(100.0, 100 * step / total_steps), 1) if total_steps else 0.0


def _previous(volume: Volume) -> Progress:
    """The former attempt's progress: its rewards stay visible until this attempt measures its own."""
    try:
        found = Progress.model_validate(read_object(volume.progress) or {})
    except ValueError:
        return Progress()
    return found.model_copy(update={"phase": "starting", "eta": None})
