"""`rljob validate`"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # which take their time, and help needs none
    from rljob_api.validation import Problem, Validated


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files with RLJobs.")],
) -> None:
    """Check RLJob files as a cluster would, generated data, and reward code that is there. Prints every error with its
    line and ends with 64 if there is one.
    """
    from rljob_api.contract import ExitCode
    from rljob_api.validation import render_problems, validate_file

    errors = 0
    for file in files:
        found = validate_file(file)
        problems = [*found.problems, *_wrong_data(found), *_wrong_code(found, file)]
        errors += len(problems)
        if problems or found.notes:
            typer.echo(render_problems([*problems, *found.notes]))
        if not problems:
            typer.echo(f"{file}: valid: {', '.join(job.metadata.name for job in found.jobs)}")
    if errors:
        typer.echo(f"{errors} error{'s' if errors > 1 else ''}", err=True)
        raise typer.Exit(ExitCode.JOB)


def _wrong_data(found: "Validated") -> "Iterator[Problem]":
    """Of generated tasks: their URLs tell all."""
    from rljob_api.validation import Problem
    from rljob_trainer.data.tasks import SCHEME, check_synthetic
    from rljob_trainer.errors import DataError

    for job, document in zip(found.jobs, found.documents, strict=True):
        spec = job.spec
        lists = {("data", "train"): spec.data.train, ("data", "validation"): spec.data.validation}
        lists |= {("sft", "data"): spec.sft.data if spec.sft else []}
        for place, urls in lists.items():
            for index, url in enumerate(urls):
                if not url.startswith(SCHEME):
                    continue
                field = f"spec.{'.'.join(place)}[{index}]"
                try:
                    check_synthetic(url, field)
                except DataError as error:
                    yield Problem(*document.locate(("spec", *place, index), key=False), field, error.message)


def _wrong_code(found: "Validated", file: Path) -> "Iterator[Problem]":
    """Of reward functions. A file that is not here may be in the cluster."""
    from rljob_api.validation import Problem
    from rljob_trainer.errors import RewardError
    from rljob_trainer.paths import locate
    from rljob_trainer.rewards.check import check_code

    for job, document in zip(found.jobs, found.documents, strict=True):
        base_dir = file.resolve().parent
        for index, function in enumerate(job.spec.rewards.functions):
            if function.path is not None and not _is_here(locate(function.path, base_dir)):
                continue
            field = f"spec.rewards.functions[{index}]"
            try:
                check_code(function, base_dir, field)
            except RewardError as error:
                named = error.field or field
                place = ("spec", "rewards", "functions", index, named.rpartition(".")[2])
                yield Problem(*document.locate(place, key=False), named, error.message)


def _is_here(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long here, a folder that we may not read
        return False
