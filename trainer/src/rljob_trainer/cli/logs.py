"""`rljob logs RUN`: the logs of a run's drivers."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rljob_trainer.volume import Volume

POLL_SECONDS = 0.5


def logs(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Attempt; the default is the newest.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new lines, also of later attempts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the lines as JSON, to a pipe unchanged.")] = False,
) -> None:
    """Print the logs of a run's drivers: one event per line, such as checkpoint_saved."""
    from rljob_trainer.errors import DataError
    from rljob_trainer.progress.state import last_attempt
    from rljob_trainer.volume import Volume

    volume = Volume(run)
    first = attempt or last_attempt(volume)
    if not first:
        raise DataError(f"no attempt has begun in {run}; give a run's folder, such as runs/NAME")
    if not follow and not volume.log(first).exists():
        raise DataError(f"attempt {first} has no log in {run}; choose another --attempt")
    for line in _following(volume, first) if follow else volume.log(first).open():
        print(line.rstrip() if as_json and not sys.stdout.isatty() else _readable(line, as_json=as_json), flush=follow)


def _following(volume: "Volume", attempt: int) -> Iterator[str]:
    """Whole lines of this attempt, then of later ones, without end."""
    from rljob_trainer.progress.state import last_attempt

    read = 0
    while True:
        over = last_attempt(volume) > attempt  # checked before the file is read to its end
        with suppress(FileNotFoundError), volume.log(attempt).open() as file:
            file.seek(read)
            while (line := file.readline()).endswith("\n"):
                yield line
                read = file.tell()
        if over:
            attempt, read = attempt + 1, 0
        else:
            time.sleep(POLL_SECONDS)


def _readable(line: str, *, as_json: bool) -> str:
    """An event formatted for a terminal; of other lines what it may print."""
    from structlog.dev import ConsoleRenderer

    from rljob_api.printable import printable

    try:
        event = None if as_json else json.loads(line)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        return printable(line.rstrip())
    shown = {printable(name): printable(value) if isinstance(value, str) else value for name, value in event.items()}
    return ConsoleRenderer(colors=sys.stdout.isatty())(None, "", shown)
