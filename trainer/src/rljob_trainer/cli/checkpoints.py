"""`rljob checkpoints RUN`: the checkpoints from which a run can resume."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rljob_trainer.checkpoint.manifest import CheckpointRef, Found

_WHY_NOT = {
    "superseded": "does not count: superseded by a later attempt, which did not resume from it",
    "unclaimed": "does not count: the claim of its attempt in attempts/ is damaged or missing; kept",
    "earlier run": "does not count: from before the run started over; kept until you delete it",
    "unfinished": "does not count: unfinished",
    "damaged": "does not count: its manifest is invalid",
    "gone": "does not count: it is missing",
}


def checkpoints(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
) -> None:
    """List a run's checkpoints, why each is kept, and whether its files are intact."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rljob_api.printable import printable
    from rljob_trainer.checkpoint.manifest import counting, survey
    from rljob_trainer.errors import DataError
    from rljob_trainer.volume import Volume

    if not run.is_dir():
        raise DataError(f"{run} is not a directory; give a run's folder, such as runs/NAME")
    found = survey(Volume(run))
    if not found:
        raise DataError(f"{run} has no checkpoint")
    kept = _reasons(counting(found))
    table = Table("step", "attempt", "age", "size", "reward", "kept", "state", box=None, pad_edge=False)
    for each in found:
        facts = _facts(each.ref) if each.ref is not None else ("-", "-", "-")
        table.add_row(
            str(each.step), str(each.attempt), *facts, kept.get(each.path, "-"), Text(printable(_state(each)))
        )
    wide = None if sys.stdout.isatty() else 200  # do not wrap lines in a pipe
    Console(highlight=False, soft_wrap=True, width=wide).print(table)


def _reasons(refs: "list[CheckpointRef]") -> dict[Path, str]:
    """Why each is kept, by the newest checkpoint's settings."""
    from rljob_trainer.checkpoint.retention import reasons_to_keep

    retention = refs[-1].manifest.retention if refs else None
    return reasons_to_keep(refs, retention) if retention else {}


def _facts(ref: "CheckpointRef") -> tuple[str, str, str]:
    """Age, size, reward."""
    from rljob_trainer.progress.views.format import duration

    manifest = ref.manifest
    reward = "-" if manifest.reward is None else f"{manifest.reward:.3f}"
    if manifest.validation_reward is not None:
        reward += f" (validation {manifest.validation_reward:.3f})"
    age = duration((datetime.now(UTC) - manifest.time).total_seconds())
    return age, f"{manifest.bytes / 1e6:.1f} MB", reward


def _state(found: "Found") -> str:
    from rljob_trainer.checkpoint.manifest import verify
    from rljob_trainer.errors import InfrastructureError

    if found.problem:
        return found.problem
    if found.lost and found.standing == "unfinished":
        return "does not count: its manifest is missing"
    if found.ref is None or found.standing != "counts":
        return _WHY_NOT[found.standing]
    try:
        verify(found.ref)
    except InfrastructureError as error:
        return str(error)
    return "whole"
