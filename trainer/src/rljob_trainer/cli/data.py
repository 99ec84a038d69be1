"""`rljob data`"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from rljob_trainer.data.tasks import describe_tasks

_TASKS: Final = "\n".join(f"  {name}: {does}\n      {arguments}" for name, does, arguments in describe_tasks())

EPILOG: Final = f"\b\nTasks, with what --set changes and its defaults:\n{_TASKS}"

_INSTEAD: Final = {
    "rows": "has its own option, --rows",
    "validationRows": "has its own option, --validation-rows",
    "validation_rows": "has its own option, --validation-rows",
    "seed": "has its own option, --seed",
    "split": "cannot be chosen: both are written",
}
"""Names that --set rejects, because they are not arguments of the task."""


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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
) -> None:
    """Write a generated task as parquet files with verl's columns; print their paths."""
    from rljob_trainer.data.tasks.files import write_task

    arguments = _pairs(options or ())
    for path in write_task(
        task, directory, arguments, rows=rows, validation_rows=validation_rows, seed=seed, overwrite=overwrite
    ):
        typer.echo(path)


def _pairs(options: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in map(_pair, options):
        if name in found:
            raise typer.BadParameter(f"{name} is given twice, as {found[name]} and {value}", param_hint="--set")
        found[name] = value
    return found


def _pair(option: str) -> tuple[str, str]:
    name, equals, value = option.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{option!r} is not NAME=VALUE", param_hint="--set")
    if name in _INSTEAD:
        raise typer.BadParameter(f"{name} {_INSTEAD[name]}", param_hint="--set")
    return name, value
