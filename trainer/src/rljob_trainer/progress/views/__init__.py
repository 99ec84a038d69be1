"""What `rljob run` prints while its driver trains. One protocol, three ways to show the same files.

    live    a picture in a terminal, drawn anew        plain   one line a step        json    structlog lines

The supervisor calls `poll` whenever it looks at its processes; a view decides by itself when there is work.
"""

from typing import Literal, Protocol

from rich.console import Console

from rljob_api.contract import ExitRecord
from rljob_trainer.progress.run_info import RunInfo

Style = Literal["live", "plain", "json"]


class Reporter(Protocol):
    """Shows one run. Calls: start, then poll and note as they come, then finish, once."""

    def start(self) -> None: ...

    def poll(self) -> None:
        """Show what is new on the volume. Cheap: call it several times a second."""

    def note(self, message: str) -> None:
        """Say one line: the supervisor's own news (a restart, an address to look at)."""

    def finish(self, record: ExitRecord | None) -> None:
        """Show the rest and the summary. record: how the last attempt ended; None if it left no record."""


def open_reporter(run: RunInfo, style: Style | None = None, console: Console | None = None) -> Reporter:
    """The view for `style`; without one: live in a terminal, else plain."""
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
