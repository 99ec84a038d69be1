"""Where metrics go besides the run's own file: experiment trackers, each in a small file, imported when a job names it.

No tracker can stop or slow a training: each lives in a thread of its own behind a bounded queue, and one that fails is
left out after one warning. Only a package that is not installed is an error, raised before the training starts.

    LoggerSet.log --> queue (1000 steps) --> thread --> Logger.log         one of these for each tracker
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from rljob_trainer.errors import JobError
from rljob_trainer.loggers.background import BackgroundLogger
from rljob_trainer.loggers.protocol import Logger, Status
from rljob_trainer.progress.run_info import RunInfo

__all__ = ["LOGGERS", "Logger", "LoggerSet", "Status"]


@dataclass(frozen=True, slots=True)
class _Row:
    """package: what `import` says. target: module and class below rljob_trainer.loggers."""

    package: str
    target: str


LOGGERS: Final[dict[str, _Row | None]] = {
    "console": None,  # `rljob run` shows the run's files; there is nothing to send
    "tensorboard": _Row("tensorboard", "tensorboard_logger:TensorBoardLogger"),
    "wandb": _Row("wandb", "wandb_logger:WandbLogger"),
    "mlflow": _Row("mlflow", "mlflow_logger:MlflowLogger"),
    "trackio": _Row("trackio", "trackio_logger:TrackioLogger"),
}
"""Each name of spec.training.loggers. Its package comes with the extra of the same name."""


class LoggerSet:
    """The trackers that a job names.

    Raises JobError, when made, for a tracker whose package is not installed.
    """

    def __init__(self, names: Sequence[str], run: RunInfo) -> None:
        rows = [(index, name, row) for index, name in enumerate(names) if (row := LOGGERS[name])]
        for index, name, row in rows:
            _require(row.package, name, f"spec.training.loggers[{index}]")
        self._loggers = [BackgroundLogger(name, _make(row.target), run) for _, name, row in rows]

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over one step's metrics; never waits."""
        for logger in self._loggers:
            logger.log(step, dict(metrics))

    def finish(self, status: Status) -> None:
        """Give each tracker some seconds to send what is left."""
        for logger in self._loggers:
            logger.close(status)
        for logger in self._loggers:
            logger.join()


def _require(package: str, name: str, field: str) -> None:
    if find_spec(package) is None:
        raise JobError(f"{name} is not installed: pip install 'rljob-trainer[{name}]', or remove it", field=field)


def _make(target: str) -> Logger:
    module, name = target.split(":")
    logger: Logger = getattr(import_module(f"rljob_trainer.loggers.{module}"), name)()
    return logger
