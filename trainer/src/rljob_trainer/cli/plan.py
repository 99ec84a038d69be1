"""`rljob plan`"""

from pathlib import Path
from typing import Annotated

import typer


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML file with one RLJob.")],
    gpu: Annotated[str, typer.Option(help="The GPU, such as H200-141GB, or a size such as 46GiB.")] = "H100-80GB",
    ranks: Annotated[
        int | None, typer.Option(min=1, help="GPUs that train, as in `rljob run`; else spec.cluster decides.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field, as in training.steps=2.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, sizes in bytes.")] = False,
) -> None:
    """Print the memory that each phase of a step takes on each GPU, from the model's configuration.

    Needs no GPU and no weights. Exits with code 64 if a phase does not fit, and names the field to change.
    """
    import json

    from rljob_api import resolve
    from rljob_api.contract import ExitCode
    from rljob_api.validation import load_rljob, with_ranks
    from rljob_trainer.compute.dtypes import compute_dtype
    from rljob_trainer.lora.source import with_adapter
    from rljob_trainer.memory import plan as planned
    from rljob_trainer.memory.config import planned_config
    from rljob_trainer.memory.critic import critic_size
    from rljob_trainer.memory.defaults import with_defaults
    from rljob_trainer.memory.gpus import gpu_bytes
    from rljob_trainer.memory.measured import model_size
    from rljob_trainer.memory.table import rendered
    from rljob_trainer.memory.teacher import teacher_size
    from rljob_trainer.memory.work import work_of
    from rljob_trainer.rank.model_source import teacher_model

    try:
        nbytes = gpu_bytes(gpu)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--gpu") from error
    written = load_rljob(file, overrides or ()).spec
    base_dir = file.resolve().parent
    spec = with_adapter(resolve(with_ranks(written, ranks, gpus=True) if ranks else written), base_dir)
    config = planned_config(spec.model, base_dir)
    dtype = compute_dtype(spec, "cuda")
    size = model_size(config, trust_remote_code=spec.model.trust_remote_code, lora=spec.model.lora, dtype=dtype)
    critic, teacher = critic_size(spec, size, base_dir), teacher_size(teacher_model(spec), base_dir, dtype)
    filled = with_defaults(spec, size, nbytes, critic, teacher)
    found = planned.plan(size, work_of(filled, critic, teacher), nbytes)
    typer.echo(json.dumps(found.as_json(), indent=2) if as_json else rendered(found, gpu, spec.ranks))
    if found.too_much:
        raise typer.Exit(ExitCode.JOB)
