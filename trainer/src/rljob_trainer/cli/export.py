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
    dtype: Annotated[
        ExportDtype | None,
        typer.Option(help="Type of the weights; the default is bfloat16, and float32 for an adapter."),
    ] = None,
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the adapter of a LoRA run alone, in peft's format.")
    ] = False,
    base: Annotated[
        Path | None, typer.Option(help="The model that a LoRA run adapts, if it has moved since the run.")
    ] = None,
    ema: Annotated[
        bool, typer.Option("--ema", help="Write the average of the policy (actor.emaDecay) in its place.")
    ] = False,
    trust_remote_code: Annotated[bool, typer.Option(help="Run Python code that comes with the model.")] = False,
) -> None:
    """Write a checkpoint as a model that transformers and vLLM load; the adapter of a LoRA run is merged into it."""
    from transformers.utils.logging import disable_progress_bar

    from rljob_trainer.checkpoint.export import choose_checkpoint, export_adapter, export_model

    if adapter and ema:
        raise typer.BadParameter("an adapter has no average: leave out --ema or --adapter")
    if adapter and base is not None:
        raise typer.BadParameter("an adapter is written without its model: leave out --base or --adapter")
    disable_progress_bar()
    ref = choose_checkpoint(run, step)
    clean_up_at_ctrl_c()
    chosen = dtype or (ExportDtype.float32 if adapter else ExportDtype.bfloat16)
    if adapter:
        size = export_adapter(ref, target, chosen.value)
    else:
        size = export_model(ref, target, chosen.value, trust_remote_code=trust_remote_code, base=base, ema=ema)
    what = "adapter" if adapter else "policy's average" if ema else "policy"
    typer.echo(f"{target}: the {what} of step {ref.manifest.step}, {size / 1e6:.1f} MB in {chosen.value}")


def clean_up_at_ctrl_c() -> None:
    """Turn Ctrl-C into SystemExit, so that a partial model is deleted."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, lambda number, _: sys.exit(128 + number))
