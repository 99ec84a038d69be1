"""`rljob export RUN FOLDER`: a checkpoint as a model."""

import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ExportDtype(StrEnum):
    """Type of the exported weights."""

    bfloat16 = "bfloat16"
    float32 = "float32"


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the model goes: a new folder.")],
    step: Annotated[int | None, typer.Option(help="Checkpoint to export; the default is the newest.")] = None,
    dtype: Annotated[ExportDtype, typer.Option(help="Type of the weights.")] = ExportDtype.bfloat16,
    trust_remote_code: Annotated[bool, typer.Option(help="Run Python code that comes with the model.")] = False,
) -> None:
    """Write a checkpoint as a model that transformers and vLLM load."""
    from transformers.utils.logging import disable_progress_bar

    from rljob_trainer.checkpoint.export import choose_checkpoint, export_model

    disable_progress_bar()
    ref = choose_checkpoint(run, step)
    clean_up_at_ctrl_c()
    size = export_model(ref, target, dtype.value, trust_remote_code=trust_remote_code)
    typer.echo(f"{target}: the policy of step {ref.manifest.step}, {size / 1e6:.1f} MB in {dtype.value}")


def clean_up_at_ctrl_c() -> None:
    """Turn Ctrl-C into SystemExit, so that a partial model is deleted."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, lambda number, _: sys.exit(128 + number))
