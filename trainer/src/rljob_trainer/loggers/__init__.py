"""Where metrics go besides the run's own file: experiment trackers, each in a small file.

No tracker can stop or slow a training: each is imported and lives in a process of its own, behind a bounded queue, and
one that fails is left out after one warning. What it prints goes to logs/NAME.log of the run. Only a package that is
not installed is an error, raised before the training starts.

    LoggerSet.log --> queue (1000 steps) --> thread --> pipe --> process: Logger.log       one of these for each tracker
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final

from rljob_trainer.errors import JobError
from rljob_trainer.loggers.background import BackgroundLogger
from rljob_trainer.loggers.console_logger import ConsoleLogger
from rljob_trainer.loggers.protocol import Logger, Status
from rljob_trainer.progress.run_info import RunInfo

__all__ = ["LOGGERS", "Logger", "LoggerSet", "Status"]


@dataclass(frozen=True, slots=True)
class _Row:
    """package: what `import` says. target: MODULE:CLASS. environment: of its process, where ours says nothing."""

    package: str
    target: str
    environment: Mapping[str, str] = field(default_factory=dict)


LOGGERS: Final[dict[str, _Row | None]] = {
    "console": None,  # the driver's own log, which no process beside it has to write
    "tensorboard": _Row("tensorboard", "rljob_trainer.loggers.tensorboard_logger:TensorBoardLogger"),
    "wandb": _Row("wandb", "rljob_trainer.loggers.wandb_logger:WandbLogger"),
    "mlflow": _Row(
        "mlflow",
        "rljob_trainer.loggers.mlflow_logger:MlflowLogger",
        {"MLFLOW_DISABLE_TELEMETRY": "true"},  # it would report to MLflow's makers, whatever server the metrics go to
    ),
    "trackio": _Row("trackio", "rljob_trainer.loggers.trackio_logger:TrackioLogger"),
}
"""Each name of spec.training.loggers. Its package comes with the extra of the same name."""


class LoggerSet:
    """The trackers that a job names.

    Raises JobError, when made, for a tracker whose package is not installed.
    """

    def __init__(self, names: Sequence[str], run: RunInfo) -> None:
        require_packages(names)
        self._console = ConsoleLogger() if "console" in names else None
        rows = [(name, row) for name in names if (row := LOGGERS[name])]
        self._loggers = [BackgroundLogger(name, row.target, run, row.environment) for name, row in rows]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over one step's metrics; never waits."""
        if self._console is not None:
            self._console.log(step, metrics)
        for logger in self._loggers:
            logger.log(step, metrics)

    def finish(self, status: Status) -> None:
        """Give each tracker some seconds to send what is left."""
        for logger in self._loggers:
            logger.close(status)
        for logger in self._loggers:
            logger.join()


def require_packages(names: Sequence[str]) -> None:
    """Raises JobError for the first of spec.training.loggers whose package is not installed."""
    for index, name in enumerate(names):
        row = LOGGERS[name]
        if row is not None and find_spec(row.package) is None:
            message = f"{name} is not installed: pip install 'rljob-trainer[{name}]', or remove it"
            raise JobError(message, field=f"spec.training.loggers[{index}]")
