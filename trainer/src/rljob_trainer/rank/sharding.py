"""FSDP2: one policy over all ranks, master weights in float32, matrix products in the compute dtype."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rljob_api import ResolvedSpec
from rljob_trainer.compute.dtypes import compute_dtype
from rljob_trainer.errors import JobError
from rljob_trainer.lora.files import is_adapter
from rljob_trainer.lora.layers import adapt
from rljob_trainer.rank.casting import CastWeights
from rljob_trainer.rank.compiling import compile_layers, compiles
from rljob_trainer.rank.forward import PackedModel, Policy
from rljob_trainer.rank.loading import adapter_weights, empty_model, full_weights
from rljob_trainer.rank.off_grid import move_off_grid
from rljob_trainer.rank.recomputing import recompute
from rljob_trainer.weights.saved_names import all_weights

COMPUTE_DTYPES: dict[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def sharded_policy(spec: ResolvedSpec, folder: Path, mesh: DeviceMesh, *, trainable: bool) -> Policy:
    """A policy of `folder`'s shape, sharded over `mesh`, its weights not yet written.

    One rank alone has nothing to gather or reduce: its parameters stay plain tensors, and casting.py computes in
    another dtype than theirs, which saves FSDP's hooks and copies. Only weights in host memory take FSDP there.

    Trainable: float32 master weights. Frozen (a reference, or a model with an adapter): weights in the compute dtype,
    which is all they need.
    Raises DataError or JobError for a model or an attention that cannot be trained here.
    """
    dtype = COMPUTE_DTYPES[compute_dtype(spec, mesh.device_type)]
    if spec.model.attention == "flash_attention_2" and (mesh.device_type, dtype) != ("cuda", torch.bfloat16):
        raise JobError("flash_attention_2 needs a GPU and dtype bfloat16: set it to auto", field="spec.model.attention")
    policy = Policy(empty_model(folder, spec.model))
    policy.requires_grad_(trainable and spec.model.lora is None)
    if spec.model.lora is not None:
        adapt(policy.model, spec.model.lora)
    train_without_noise(policy, trainable=trainable)
    if trainable:
        recompute(policy.model, spec.actor.recompute)
    shrink_frozen(policy, dtype)
    shard(policy, spec, mesh, dtype)
    return policy


def shrink_frozen(model: nn.Module, dtype: torch.dtype) -> None:
    """Frozen weights in the type of matrix products."""
    for parameter in model.parameters():  # not model.to(dtype): rotary frequencies stay in float32
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


def load_initial_weights(policy: Policy, spec: ResolvedSpec, folder: Path, mesh: DeviceMesh) -> None:
    """Fill the policy from its folder. Every rank calls this; only rank 0 ever holds the whole model."""
    weights: dict[str, Any] = {}
    if mesh.get_rank() == 0:
        weights = full_weights(folder, spec.model, spec.training.seed)
        bfloat16 = compute_dtype(spec, mesh.device_type) == "bfloat16"
        if bfloat16 and all(each.requires_grad for each in policy.parameters()):
            move_off_grid(weights.values(), spec.training.seed)
        weights |= adapter_weights(policy.model, spec.model, spec.training.seed)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(policy.model, weights, options=options)


@torch.no_grad()
def copy_weights(source: Policy, target: Policy) -> None:
    """Each rank copies its own shards; both policies have the same shape and mesh."""
    for (_, ours), (_, theirs) in zip(all_weights(source), all_weights(target), strict=True):
        theirs.copy_(ours)


@torch.no_grad()
def copy_named_weights(source: nn.Module, target: nn.Module) -> None:
    """As copy_weights, for what the two have in common, except adapters."""
    ours = dict(all_weights(source))
    for name, theirs in all_weights(target):
        if name in ours and not is_adapter(name):
            theirs.copy_(ours[name])


def shard(model: PackedModel, spec: ResolvedSpec, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Spread the model over the ranks. dtype: of matrix products."""
    # Gradients are summed in float32 whatever the compute dtype: in bfloat16 the sum over ranks would lose small ones.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offloads = spec.actor.fsdp.offload in {"parameters", "all"} and mesh.device_type == "cuda"
    offload = CPUOffloadPolicy() if offloads else OffloadPolicy()
    layers = decoder_layers(model.model)
    if compiles(spec, mesh.device_type):
        compile_layers(layers)
    if mesh.size() == 1 and not offloads:
        model.to(mesh.device_type)
        if dtype is not torch.float32:
            CastWeights(model, layers, dtype)
        return
    for layer in layers:
        fully_shard(
            layer,
            mesh=mesh,
            mp_policy=precision,
            offload_policy=offload,
            reshard_after_forward=spec.actor.fsdp.reshard_after_forward,
        )
    fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=offload)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The blocks of the decoder, which FSDP gathers one by one: wherever an architecture keeps them."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=lambda each: sum(p.numel() for p in each.parameters()), default=nn.ModuleList())
    return list(layers)


def train_without_noise(model: PackedModel, *, trainable: bool) -> None:
    """Gradient checkpointing acts in training mode only; jitter of routers, and dropout, must not act.

    The ratio of a token's probabilities before and after an update must be that of weights, not of random numbers.
    """
    model.eval()
    for module in model.modules():
        module.training = trainable and isinstance(module, GradientCheckpointingLayer | PreTrainedModel)
