"""What `rljob run` prints while its driver trains: one protocol, three views of the same files.

live    a terminal display that is redrawn        plain   one line per step        json    structlog lines
"""

from typing import Literal, Protocol

from rich.console import Console

from rljob_api.contract import ExitRecord
from rljob_trainer.progress.run_info import RunInfo

Style = Literal["live", "plain", "json"]


class Reporter(Protocol):
    """Shows one run. Call order: start, poll and note any number of times, finish."""

    def start(self) -> None: ...

    def poll(self) -> None:
        """Show what is new on the volume. Cheap: called several times per second."""

    def note(self, message: str) -> None:
        """Show one line from the supervisor, such as a restart."""

    def finish(self, record: ExitRecord | None) -> None:
        """Show the rest and the summary. record: of the last attempt; None if it left none."""


def open_reporter(run: RunInfo, style: Style | None = None, console: Console | None = None) -> Reporter:
    """The view for `style`; default: live in a terminal, else plain."""
    from rljob_trainer.progress.views.json_lines import JsonView
    from rljob_trainer.progress.views.live import LiveView
    from rljob_trainer.progress.views.plain import PlainView

    console = console or Console(highlight=False)
    style = style or ("live" if console.is_terminal else "plain")
    match style:
        case "live":
            return LiveView(run, console)
        case "plain":
            return PlainView(run, console)
        case "json":
            return JsonView(run)
