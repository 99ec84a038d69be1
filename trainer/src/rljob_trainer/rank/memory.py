"""What a rank holds of GPU memory: measured, given back, and named if it did not suffice."""

import math
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rljob_api import ResolvedSpec
from rljob_trainer.memory.explained import explained
from rljob_trainer.memory.held import GIB, Held
from rljob_trainer.memory.rank_advice import HOST, REST, RankPhase, rank_error
from rljob_trainer.rank.models.role import ModelRole

if TYPE_CHECKING:
    from rljob_trainer.rank.rank import Rank

P = ParamSpec("P")

_MARGIN = 4 * GIB
"""For what engines take beside their share as they wake, and for tensors on their way."""
R = TypeVar("R")


def in_phase(phase: RankPhase) -> Callable[[Callable[Concatenate["Rank", P], R]], Callable[Concatenate["Rank", P], R]]:
    """For a method of Rank: raises JobError that says what held the memory if it did not suffice."""

    def decorated(method: Callable[Concatenate["Rank", P], R]) -> Callable[Concatenate["Rank", P], R]:
        @wraps(method)
        def call(rank: "Rank", /, *args: P.args, **kwargs: P.kwargs) -> R:
            with explained(lambda text: rank_error(phase, Held.of(text, held_by(rank), REST), rank.spec), HOST[phase]):
                return method(rank, *args, **kwargs)

        return call

    return decorated


def give_back(device: torch.device) -> None:
    """Free what torch's allocator keeps of the GPU for later tensors: another process needs it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def give_back_for_engines(device: torch.device, spec: ResolvedSpec, engines: int | None) -> None:
    """`give_back`, unless engines and buckets find room beside what the allocator keeps: freed blocks cost the next
    update an allocation each.

    engines: bytes that they take as they wake; None: their whole share.
    """
    if device.type == "cuda" and torch.cuda.mem_get_info()[0] < _wanted_by_engines(device, spec, engines):
        give_back(device)


def _wanted_by_engines(device: torch.device, spec: ResolvedSpec, engines: int | None) -> float:
    """Bytes. Engine hf takes what its sequences need, which is unknown."""
    rollout = spec.rollout
    if rollout.engine != "vllm":
        return math.inf
    share = rollout.gpu_memory_utilization * torch.cuda.get_device_properties(device).total_memory
    wanted = share if engines is None else engines
    return wanted + 2 * (rollout.weight_sync.bucket_mib << 20) + _MARGIN


def held_by(rank: "Rank") -> dict[str, int]:
    """Bytes on the rank's device of each kind of tensor that outlives a step."""
    sizes: dict[str, int] = {}
    for role in rank.roles() if hasattr(rank, "policy") else ():
        for name, tensors in _kinds(role):
            sizes[name] = sizes.get(name, 0) + sum(_nbytes(each, rank.device) for each in tensors)
    return sizes


def _kinds(role: ModelRole[nn.Module]) -> Iterable[tuple[str, list[Tensor]]]:
    parameters: list[Tensor] = list(role.module.parameters())
    prefix = "" if role.name == "policy" else f"{role.name} "
    yield f"{prefix}weights", parameters
    if role.optimizer is not None:
        yield f"{prefix}gradients", [each.grad for each in parameters if each.grad is not None]
        states = role.optimizer.state.values()
        yield f"{prefix}optimizer", [each for state in states for each in state.values() if isinstance(each, Tensor)]


def _nbytes(tensor: Tensor, device: torch.device) -> int:
    """Of this rank's part."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size() if local.device.type == device.type else 0
