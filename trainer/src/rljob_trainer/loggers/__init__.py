"""Experiment trackers, which receive the metrics and episodes of validations besides the run's own files.

A tracker can neither stop nor slow the training: it runs in its own process behind a bounded queue, and is left out
after its first failure, with one warning. Its output goes to logs/NAME.log of the run. A package that is not installed
is an error, raised before the training starts.

    LoggerSet.log --> queue (1000 steps) --> thread --> pipe --> process: Logger.log       one for each tracker
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from rljob_trainer.errors import JobError
from rljob_trainer.loggers.background import BackgroundLogger
from rljob_trainer.loggers.console_logger import ConsoleLogger
from rljob_trainer.loggers.episodes import episode_table
from rljob_trainer.loggers.protocol import Logger, Status
from rljob_trainer.progress.run_info import RunInfo

__all__ = ["LOGGERS", "Logger", "LoggerSet", "Status"]


@dataclass(frozen=True, slots=True)
class _Row:
    """package: name of its import. target: MODULE:CLASS. environment: defaults for variables of its process."""

    package: str
    target: str
    environment: Mapping[str, str] = field(default_factory=dict)


LOGGERS: Final[dict[str, _Row | None]] = {
    "console": None,  # the driver writes its own log
    "tensorboard": _Row("tensorboard", "rljob_trainer.loggers.tensorboard_logger:TensorBoardLogger"),
    "wandb": _Row("wandb", "rljob_trainer.loggers.wandb_logger:WandbLogger"),
    "mlflow": _Row(
        "mlflow",
        "rljob_trainer.loggers.mlflow_logger:MlflowLogger",
        {"MLFLOW_DISABLE_TELEMETRY": "true"},
    ),
    "trackio": _Row("trackio", "rljob_trainer.loggers.trackio_logger:TrackioLogger"),
}
"""The names of spec.training.loggers; the extra of the same name installs the package."""


class LoggerSet:
    """The trackers of a job. The constructor raises JobError if a tracker's package is not installed."""

    def __init__(self, names: Sequence[str], run: RunInfo) -> None:
        require_packages(names)
        self._console = ConsoleLogger() if "console" in names else None
        rows = [(name, row) for name in names if (row := LOGGERS[name])]
        self._loggers = [BackgroundLogger(name, row.target, run, row.environment) for name, row in rows]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue one step's metrics; never waits."""
        if self._console is not None:
            self._console.log(step, metrics)
        for logger in self._loggers:
            logger.log(step, metrics)

    def episodes(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Queue the samples of a validation; never waits."""
        table = episode_table(step, samples)
        for logger in self._loggers:
            logger.episodes(table)

    def finish(self, status: Status) -> None:
        """Wait up to FINISH_SECONDS for each tracker to send its queue."""
        for logger in self._loggers:
            logger.close(status)
        for logger in self._loggers:
            logger.join()


def require_packages(names: Sequence[str]) -> None:
    """Raise JobError for the first entry of spec.training.loggers whose package is not installed."""
    for index, name in enumerate(names):
        row = LOGGERS[name]
        if row is not None and find_spec(row.package) is None:
            message = f"{name} is not installed; run pip install 'rljob-trainer[{name}]', or remove the entry"
            raise JobError(message, field=f"spec.training.loggers[{index}]")
