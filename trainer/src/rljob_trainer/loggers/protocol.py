"""The interface of an experiment tracker."""

from collections.abc import Mapping
from typing import Literal, Protocol

from rljob_trainer.loggers.episodes import EpisodeTable
from rljob_trainer.progress.run_info import RunInfo

Status = Literal["done", "failed", "stopped"]


class Logger(Protocol):
    """One experiment tracker. One thread makes the calls in this order; any of them may raise."""

    def start(self, run: RunInfo) -> None:
        """Begin the run, or continue the one to which an earlier attempt logged."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def episodes(self, table: EpisodeTable) -> None:
        """Episodes of a validation, before the metrics of its step."""

    def finish(self, status: Status) -> None:
        """Send all remaining data."""
