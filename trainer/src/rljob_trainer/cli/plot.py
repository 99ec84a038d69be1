"""`rljob plot`"""

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run directories; several are drawn over each other.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The picture (png, pdf, svg); else RUN/curves.png.")
    ] = None,
) -> None:
    """Draw a run's curves; print the picture's path.

    They are reward, response length, entropy, KL, clip fraction, gradient norm, the difference of log-probabilities
    between engine and trainer, effective sample size, MFU and memory of GPUs, the share of a step in which engines and
    ranks are idle, and the time of each phase.
    """
    from rljob_trainer.progress import plot as plots

    path = output or (runs[0] / "curves.png" if len(runs) == 1 else Path("curves.png"))
    plots.save(plots.draw(plots.load_runs(runs)), path)
    typer.echo(path)
