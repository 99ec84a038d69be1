"""What the memory of this rank's GPU decides of the spec; all ranks decide alike."""

from pathlib import Path

import structlog
import torch
import torch.distributed as dist

from rljob_api import ResolvedSpec
from rljob_trainer.errors import DataError
from rljob_trainer.memory.critic import critic_size
from rljob_trainer.memory.defaults import with_defaults
from rljob_trainer.memory.measured import model_size
from rljob_trainer.rank.supported import load_config

log = structlog.get_logger()


def spec_here(spec: ResolvedSpec, folder: Path, critic: Path | None, device: torch.device) -> ResolvedSpec:
    """The spec with actor.recompute; collective on GPUs.

    folder: with the policy's configuration. critic: with that of the critic's own model.
    """
    if spec.actor.recompute is not None:
        return spec
    recompute = _fitting(spec, folder, critic, device) if device.type == "cuda" else "layer"
    log.info("recompute_chosen", recompute=recompute)
    return spec.model_copy(update={"actor": spec.actor.model_copy(update={"recompute": recompute})})


def _fitting(spec: ResolvedSpec, folder: Path, critic: Path | None, device: torch.device) -> str:
    total = torch.tensor(torch.cuda.get_device_properties(device).total_memory, device=device)
    dist.all_reduce(total, dist.ReduceOp.MIN)  # of the smallest GPU
    trusted = spec.model.trust_remote_code
    try:
        size = model_size(
            load_config(folder, trust_remote_code=trusted), trust_remote_code=trusted, lora=spec.model.lora
        )
        valued = critic_size(_with_critic(spec, critic), size, folder)
    except DataError as error:
        log.warning("memory_not_planned", reason=error.message)
        return "layer"
    return with_defaults(spec, size, int(total), valued).actor.recompute or "layer"


def _with_critic(spec: ResolvedSpec, folder: Path | None) -> ResolvedSpec:
    """The spec with the critic's model where it is on this machine."""
    if spec.critic is None or folder is None:
        return spec
    return spec.model_copy(update={"critic": spec.critic.model_copy(update={"model": str(folder)})})
