"""Where metrics go besides the run's own file: experiment trackers, each in a small file, imported when a job names it.

No tracker can stop or slow a training: each lives in a thread of its own behind a bounded queue, and one that fails is
left out after one warning. Only a package that is not installed is an error, raised before the training starts.
"""

from collections.abc import Mapping
from typing import Protocol

from rljob_trainer.progress.run_info import RunInfo


class Logger(Protocol):
    """One experiment tracker. The calls come from one thread, in this order."""

    def start(self, run: RunInfo) -> None:
        """Begin the run, or continue it where an earlier attempt logged to it."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def finish(self, status: str) -> None:
        """status: "done", "failed" or "stopped"."""
