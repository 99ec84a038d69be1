"""`rljob status`"""

import json
from pathlib import Path
from typing import Annotated

import typer


def status(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Summarise a run: its state, progress and result."""
    from rljob_api.printable import printable
    from rljob_trainer.progress.overview import lines, look_at

    found = look_at(directory)
    typer.echo(json.dumps(found.as_json(), indent=2) if as_json else printable("\n".join(lines(found))))
