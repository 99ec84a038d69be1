"""What the memory of this rank's GPU decides; all ranks decide alike."""

from pathlib import Path

import structlog
import torch
import torch.distributed as dist

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.errors import DataError
from rljob_trainer.memory.critic import critic_size
from rljob_trainer.memory.defaults import with_defaults
from rljob_trainer.memory.measured import model_size
from rljob_trainer.memory.phases import engine_bytes
from rljob_trainer.memory.teacher import teacher_size
from rljob_trainer.memory.work import work_of
from rljob_trainer.rank.model_source import teacher_model
from rljob_trainer.rank.supported import load_config

log = structlog.get_logger()


def planned_here(
    spec: ResolvedSpec, folder: Path, critic: Path | None, teacher: Path | None, device: torch.device
) -> tuple[ResolvedSpec, int | None]:
    """The spec, and the bytes that the GPU's engines take as they wake; collective on GPUs.

    actor.recompute is none if it is not set and the GPU has the memory for that (memory.defaults).

    The bytes are None on a CPU, for engine hf, and for a model whose memory cannot be planned.
    folder: with the policy's configuration. critic, teacher: with that of the critic's own
    model and of the teacher.
    """
    filled, engines = _planned(spec, folder, critic, teacher, device) if device.type == "cuda" else (spec, None)
    if spec.actor.recompute is None and filled.actor.recompute == "none":
        log.info("recompute_chosen", recompute="none")
        return spec.model_copy(update={"actor": filled.actor}), engines
    return spec, engines


def _planned(
    spec: ResolvedSpec, folder: Path, critic: Path | None, teacher: Path | None, device: torch.device
) -> tuple[ResolvedSpec, int | None]:
    total = torch.tensor(torch.cuda.get_device_properties(device).total_memory, device=device)
    dist.all_reduce(total, dist.ReduceOp.MIN)  # of the smallest GPU
    gpu, trusted = int(total), spec.model.trust_remote_code
    try:
        config = load_config(folder, trust_remote_code=trusted)
        dtype = compute_dtype(spec, "cuda")
        size = model_size(config, trust_remote_code=trusted, lora=spec.model.lora, dtype=dtype)
        valued = critic_size(_with_critic(spec, critic, folder), size, folder)
        taught = teacher_size(teacher_model(spec, teacher), folder, dtype)
    except DataError as error:
        log.warning("memory_not_planned", reason=error.message)
        return spec, None
    filled = with_defaults(spec, size, gpu, valued, taught)
    work = work_of(filled, valued, taught)
    return filled, engine_bytes(size, work, gpu) if work.engines and work.share else None


def _with_critic(spec: ResolvedSpec, own: Path | None, policy: Path) -> ResolvedSpec:
    """The spec with the critic's model, or the policy's if its adapter is to be measured, as it is on this machine."""
    folder = own if spec.critic is None or spec.critic.lora is None else own or policy
    if spec.critic is None or folder is None:
        return spec
    return spec.model_copy(update={"critic": spec.critic.model_copy(update={"model": str(folder)})})
