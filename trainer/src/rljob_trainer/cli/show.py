"""`rljob show`"""

from pathlib import Path
from typing import Annotated

import typer


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with one RLJob.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field, as in training.steps=2.")
    ] = None,
) -> None:
    """Print a job as it will run: every default and every field of its preset filled in."""
    from rljob_api.show import render_show
    from rljob_api.validation import load_rljob

    typer.echo(render_show(load_rljob(file, overrides or ())), nl=False)
