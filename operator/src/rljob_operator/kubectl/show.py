"""Text for a terminal, and plain for a pipe."""

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

PIPE_COLUMNS = 2000
"""Nothing is to be broken for whoever reads lines."""

STYLES = {
    "Running": "green",
    "Succeeded": "green",
    "Starting": "cyan",
    "Pending": "cyan",
    "Recovering": "yellow",
    "Suspending": "yellow",
    "Failed": "red",
    "Warning": "yellow",
}

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


class Format(StrEnum):
    JSON = "json"
    YAML = "yaml"


Output = Annotated[
    Format | None, typer.Option("--output", "-o", help="The objects instead of the text.", show_default=False)
]


def span(seconds: float) -> str:
    """Its two largest units: 1h5m, 12s. Clocks differ, so what is not over yet may be negative: 0s."""
    left, parts = max(int(seconds), 0), list[str]()
    for unit, size in _UNITS:
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2])


def number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> "RenderableType":
    """Cells that are words of STYLES, or begin with one, have its colour."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(*head, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="")
    for row in rows:
        shown.add_row(*(Text(cell, STYLES.get(cell.partition(" ")[0], "")) for cell in row))
    return shown


def grid(rows: Iterable[tuple[str, str]]) -> "RenderableType":
    """Labels and values."""
    from rich.table import Table
    from rich.text import Text

    shown = Table.grid(padding=(0, 2, 0, 0))
    for label, value in rows:
        shown.add_row(Text(label, "bold"), Text(value, STYLES.get(value.partition(" ")[0].rstrip(","), "")))
    return shown


def show(*parts: "RenderableType") -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def show_objects(objects: Any, output: Format) -> None:
    if output is Format.JSON:
        typer.echo(json.dumps(objects, indent=2))
        return
    import yaml

    typer.echo(yaml.safe_dump(objects, sort_keys=False, allow_unicode=True), nl=False)
