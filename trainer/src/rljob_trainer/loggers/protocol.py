"""What an experiment tracker has to do."""

from collections.abc import Mapping
from typing import Literal, Protocol

from rljob_trainer.progress.run_info import RunInfo

Status = Literal["done", "failed", "stopped"]


class Logger(Protocol):
    """One experiment tracker. The calls come from one thread, in this order; any of them may raise."""

    def start(self, run: RunInfo) -> None:
        """Begin the run, or continue it where an earlier attempt logged to it."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def finish(self, status: Status) -> None:
        """Send what is left."""
