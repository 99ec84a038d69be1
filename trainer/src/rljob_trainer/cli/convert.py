"""`rljob convert`"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # slow to import, and `--help` does not need it
    from rljob_trainer.convert.conversion import Conversion

NOT_ALL = 3
"""Exit code: the RLJob is written, and something of the source is not in it or is wrong in it."""


class Framework(StrEnum):
    """Where settings come from."""

    verl = "verl"
    trl = "trl"


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A .yaml or .json file, a launch script, or key=value.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that replace those of SOURCE.")
    ] = None,
    framework: Annotated[
        Framework | None, typer.Option("--from", help="The default is what the settings show.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of the output.")] = None,
) -> None:
    """Write an RLJob from a configuration of verl, or of TRL's GRPO or DPO.

    Scripts are read and not run. Comments say where a value means something else and what has no field.
    Exits with code 0 if all is converted, with 3 if something is left or the job needs a change, and with 64 if
    nothing is written.
    """
    from rljob_api.printable import printable
    from rljob_api.validation import render_problems, validate
    from rljob_trainer.convert.convert import conversion_of
    from rljob_trainer.convert.document import rendered

    conversion = conversion_of(source, overrides or (), framework.value if framework else None)
    text = rendered(conversion, source if not _is_setting(source) else "key=value")
    if output is None:
        typer.echo(printable(text), nl=False)
    else:
        output.write_text(text, "utf-8")
    problems = validate(text, str(output or "output")).problems
    if problems:
        typer.echo(printable(render_problems(problems)), err=True)
    _report_left(conversion)
    if problems or conversion.left:
        raise typer.Exit(NOT_ALL)


def _is_setting(source: str) -> bool:
    return "=" in source and not Path(source).is_file()


def _report_left(conversion: "Conversion") -> None:
    from rljob_api.printable import printable

    for why, keys in conversion.left_by_reason().items():
        typer.echo(printable(f"not converted: {', '.join(keys)}: {why}"), err=True)
