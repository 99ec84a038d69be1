"""`rljob preflight`"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def preflight(
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Processes; the default is the GPUs present, else 2.", show_default=False),
    ] = None,
    minimum: Annotated[
        float, typer.Option("--min-bus-bandwidth", min=0, help="GB/s of a pair below which the command fails.")
    ] = 0.0,
    seconds: Annotated[float, typer.Option(min=1, help="Time for the measurement; larger sizes are left out.")] = 60.0,
    folder: Annotated[
        Path | None, typer.Option(help="Folder on a volume whose bandwidth is measured too.", show_default=False)
    ] = None,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Measure gloo between CPU processes, also if there are GPUs.")
    ] = False,
) -> None:
    """Measure the links between this machine's GPUs as nccl-tests does, and compare every element.

    Exits with code 75 if an element is wrong, or a pair is slower than --min-bus-bandwidth. A job does the same before
    it loads a model if spec.preflight.fabric is set, also between nodes.
    """
    from rljob_trainer.errors import FabricSlow, FabricWrong, InfrastructureError, JobError
    from rljob_trainer.local.machine import visible_gpus
    from rljob_trainer.preflight.check import CPU_LIMITS, GPU_LIMITS
    from rljob_trainer.preflight.local import measure_here
    from rljob_trainer.preflight.measured import MemberFailed, Unanswered
    from rljob_trainer.preflight.rounds import Shape
    from rljob_trainer.preflight.table import lines
    from rljob_trainer.preflight.verdict import explanation, judge

    gpus = [] if cpu else visible_gpus()
    shape = Shape(1, ranks or len(gpus) or 2)
    if gpus and shape.ranks > len(gpus):
        raise JobError(
            f"{shape.ranks} ranks need as many GPUs, but {len(gpus)} are visible; lower --ranks, or add --cpu"
        )
    limits = replace(
        GPU_LIMITS if gpus else CPU_LIMITS, seconds=seconds, minimum=minimum, folder=str(folder) if folder else None
    )
    try:
        measured = measure_here(shape, gpus, limits)
    except (MemberFailed, Unanswered) as error:
        raise InfrastructureError(str(error)) from error
    typer.echo("\n".join(lines(measured, shape)))
    verdict = judge(measured, shape, minimum)
    if not verdict.passed:
        raise (FabricWrong if verdict.wrong else FabricSlow)(explanation(verdict, measured, shape, minimum))
