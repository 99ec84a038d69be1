"""`rljob checkpoints RUN`: what a run can continue from."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer


def checkpoints(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
) -> None:
    """List a run's checkpoints and read every file of them: is each what was written?"""
    from rich.console import Console
    from rich.table import Table

    from rljob_trainer.checkpoint.manifest import list_checkpoints, verify
    from rljob_trainer.errors import DataError, InfrastructureError
    from rljob_trainer.progress.views.format import duration
    from rljob_trainer.volume import Volume

    refs = list_checkpoints(Volume(run))
    if not refs:
        raise DataError(f"{run} has no finished checkpoint")
    table = Table("step", "attempt", "age", "size", "reward", "state", box=None, pad_edge=False)
    for ref in refs:
        try:
            verify(ref)
            state = "whole"
        except InfrastructureError as error:
            state = str(error)
        manifest = ref.manifest
        reward = "-" if manifest.reward is None else f"{manifest.reward:.3f}"
        age = duration((datetime.now(UTC) - manifest.time).total_seconds())
        size = f"{manifest.bytes / 1e6:.1f} MB"
        table.add_row(str(manifest.step), str(manifest.attempt), age, size, reward, state)
    Console(highlight=False).print(table)
