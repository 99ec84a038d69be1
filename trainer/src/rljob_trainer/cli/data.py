"""`rljob data`"""

from pathlib import Path
from typing import Annotated

import typer


def data(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name, such as reverse-text.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where train.parquet and validation.parquet go.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to train on.")] = 2000,
    validation_rows: Annotated[int, typer.Option(min=1, help="Rows to validate on; none is a training row.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal rows.")] = 0,
    options: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="An argument of the task, as in maxLength=6."),
    ] = None,
) -> None:
    """Write a generated task as parquet files with verl's columns; print their paths."""
    from rljob_trainer.data.tasks import write_task

    arguments = dict(_pair(option) for option in options or ())
    for path in write_task(task, directory, rows=rows, validation_rows=validation_rows, seed=seed, **arguments):
        typer.echo(path)


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{option!r} is not NAME=VALUE", param_hint="--set")
    return name, value
