"""The critic: a copy of the policy as RL begins, or a model of its own, with a head of one value."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rljob_api import ResolvedSpec
from rljob_api.resolve import ResolvedLora
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.lora.layers import adapt, adapted_layers, initial_matrices
from rljob_trainer.rank.critic_loading import critic_weights
from rljob_trainer.rank.forward import Critic, Policy
from rljob_trainer.rank.loading import empty_model
from rljob_trainer.rank.models.role import ModelRole, adamw
from rljob_trainer.rank.off_grid import move_off_grid
from rljob_trainer.rank.packable import rows_as
from rljob_trainer.rank.recomputing import recompute
from rljob_trainer.rank.sharding import COMPUTE_DTYPES, copy_named_weights, shard, shrink_frozen, train_without_noise


def critic_of(
    policy: ModelRole[Policy], spec: ResolvedSpec, folder: Path, own: Path | None, mesh: DeviceMesh,
    device: torch.device,
) -> ModelRole[Critic]:  # fmt: skip
    """The critic with its first weights and a fresh optimizer; collective.

    folder: with the policy's configuration. own: with the model of spec.critic.model; None: copy the policy.
    Raises DataError for a model that cannot be a critic.
    """
    assert spec.critic is not None
    dtype = COMPUTE_DTYPES[compute_dtype(spec, mesh.device_type)]
    critic = Critic(empty_model(own or folder, spec.model))
    if spec.critic.adapter is not None:
        _adapt(critic, spec.critic.adapter, dtype)
    train_without_noise(critic, trainable=True)
    recompute(critic.model, spec.actor.recompute)
    rows_as(critic, policy.module)
    shard(critic, spec, mesh, dtype)
    if own is None:
        copy_named_weights(policy.module, critic)
        _add_adapter(policy.module, critic)
    _load(critic, own, spec, mesh)
    optimizer = adamw(critic, spec, device, spec.critic.weight_decay)
    return ModelRole("critic", critic, critic, optimizer, whole=True)


def _adapt(critic: Critic, lora: ResolvedLora, dtype: torch.dtype) -> None:
    """Let an adapter and the head train alone. dtype: of what is frozen."""
    critic.model.requires_grad_(requires_grad=False)
    adapt(critic.model, lora, "spec.critic.lora.targetModules")
    shrink_frozen(critic, dtype)


@torch.no_grad()
def _add_adapter(policy: Policy, critic: Critic) -> None:
    """What the policy's adapter, if it has one, adds to its weights. A rank has the same rows of B as of a weight."""
    targets = dict(critic.named_parameters())
    for name, layer in adapted_layers(policy).items():
        weight, up = _local(targets[f"{name}.weight"]), _local(layer.lora_B.weight)
        down = layer.lora_A.weight.detach()
        whole = down.full_tensor() if isinstance(down, DTensor) else down
        weight.addmm_(up.to(weight), whole.to(weight), alpha=layer.scale)


def _local(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _load(critic: Critic, folder: Path | None, spec: ResolvedSpec, mesh: DeviceMesh) -> None:
    """Its own model, if it has one, and a fresh adapter. Every rank calls this; only rank 0 holds whole weights."""
    weights: dict[str, Any] = {}
    if mesh.get_rank() == 0:
        weights = critic_weights(critic, folder, spec.model) if folder is not None else {}
        if compute_dtype(spec, mesh.device_type) == "bfloat16":
            move_off_grid(weights.values(), spec.training.seed)
        weights |= initial_matrices(critic, spec.training.seed)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(critic, weights, options=options)
