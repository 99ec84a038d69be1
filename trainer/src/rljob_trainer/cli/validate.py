"""`rljob validate`"""

from pathlib import Path
from typing import Annotated

import typer


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files with RLJobs.")],
) -> None:
    """Check RLJob files as a cluster would. Prints every error with its line and ends with 64 if there is one."""
    from rljob_api.contract import ExitCode
    from rljob_api.validation import render_problems, validate_file

    problems = 0
    for file in files:
        found = validate_file(file)
        problems += len(found.problems)
        if found.problems or found.notes:
            typer.echo(render_problems([*found.problems, *found.notes]))
        if not found.problems:
            typer.echo(f"{file}: valid: {', '.join(job.metadata.name for job in found.jobs)}")
    if problems:
        typer.echo(f"{problems} error{'s' if problems > 1 else ''}", err=True)
        raise typer.Exit(ExitCode.JOB)
