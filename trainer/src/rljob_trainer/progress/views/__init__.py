"""What `rljob run` prints while its driver trains: one protocol, two views of the same files.

live    a terminal display that is redrawn        plain   one line per step
"""

from typing import Protocol

from rich.console import Console

from rljob_api.contract import ExitRecord
from rljob_trainer.progress.run_info import RunInfo


class Reporter(Protocol):
    """Shows one run. Call order: start, poll and note any number of times, finish."""

    def start(self) -> None: ...

    def poll(self) -> None:
        """Show what is new on the volume. Cheap: called several times per second."""

    def note(self, message: str) -> None:
        """Show one line from the supervisor, such as a restart."""

    def finish(self, record: ExitRecord | None) -> None:
        """Show the rest and the summary. record: of the last attempt; None if it left none."""


def open_reporter(run: RunInfo, console: Console | None = None) -> Reporter:
    """The live view in a terminal, else the plain one."""
    from rljob_trainer.progress.views.live import LiveView
    from rljob_trainer.progress.views.plain import PlainView

    console = console or Console(highlight=False)
    return LiveView(run, console) if console.is_terminal else PlainView(run, console)
