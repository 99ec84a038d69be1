"""Whole weights from the shards of all ranks, many in one collective.

A model has hundreds of parameters, and for each a DTensor takes a fifth of a millisecond of Python to gather itself.
Here shards are cast, packed into one buffer and gathered together:

    rank 0   [a0 | b0 | c0]  ─┐                        [[a0 b0 c0]      a = a0 a1
    rank 1   [a1 | b1 | c1]  ─┴─ one all-gather ──>     [a1 b1 c1]]     b = b0 b1, ...

FSDP gives every rank ceil(rows / ranks) rows of a parameter, the last ones fewer or none.
https://pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from rljob_trainer.weights.bucket import aligned

GROUP_BYTES = 64 << 20
"""Of whole weights in one collective; a larger one has a collective for itself."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One weight. local: this rank's rows, cast, or all of it. group: the ranks that share it; None for a whole one."""

    name: str
    local: Tensor
    shape: torch.Size
    group: dist.ProcessGroup | None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.local.element_size()

    def shard_bytes(self, ranks: int) -> int:
        """Of the largest shard, which all ranks send."""
        rows, row = self.shape[0], math.prod(self.shape[1:]) * self.local.element_size()
        return -(-rows // ranks) * row


@torch.no_grad()
def whole_weights(
    weights: Iterable[tuple[str, Tensor]], device: torch.device, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """All weights whole on `device`, floating-point ones in `dtype`, in their order; collective."""
    waiting: list[_Part] = []
    held = 0
    for name, weight in weights:
        part = _part(name, weight, device, dtype)
        if waiting and held + part.nbytes > GROUP_BYTES:
            yield from _gathered(waiting)
            waiting, held = [], 0
        waiting.append(part)
        held += part.nbytes
    yield from _gathered(waiting)


def _part(name: str, weight: Tensor, device: torch.device, dtype: torch.dtype) -> _Part:
    """Cast first: half the bytes cross between ranks."""
    wanted = dtype if weight.is_floating_point() else None
    if not isinstance(weight, DTensor):
        return _Part(name, weight.detach().to(device, wanted), weight.shape, None)
    *outer, inner = weight.placements
    if any(each != Replicate() for each in outer) or inner != Shard(0):
        whole = cast("DTensor", weight.detach().to(device, wanted)).full_tensor()
        return _Part(name, whole, whole.shape, None)
    group = weight.device_mesh.get_group(-1) if weight.device_mesh.size(-1) > 1 else None
    return _Part(name, weight.to_local().to(device, wanted), weight.shape, group)


def _gathered(parts: list[_Part]) -> Iterator[tuple[str, Tensor]]:
    groups = {part.group for part in parts if part.group is not None}
    for group in groups:  # one, but for a model over several meshes
        shared = [part for part in parts if part.group is group]
        arrived = dict(_all_gathered(shared, group))
        parts = [
            _Part(each.name, arrived[each.name], each.shape, None) if each.name in arrived else each for each in parts
        ]
    yield from ((part.name, part.local) for part in parts)


def _all_gathered(parts: list[_Part], group: dist.ProcessGroup) -> Iterator[tuple[str, Tensor]]:
    ranks = dist.get_world_size(group)
    sizes = [part.shard_bytes(ranks) for part in parts]
    starts = [0]
    for size in sizes:
        starts.append(aligned(starts[-1] + size))
    ours = torch.empty(starts[-1], dtype=torch.uint8, device=parts[0].local.device)
    for part, start in zip(parts, starts, strict=False):
        shard = part.local.contiguous().view(-1)
        ours[start : start + shard.nbytes].view(shard.dtype).copy_(shard)
    theirs = torch.empty(ranks * len(ours), dtype=torch.uint8, device=ours.device)
    dist.all_gather_into_tensor(theirs, ours, group=group)
    by_rank = theirs.view(ranks, -1)
    for part, start, size in zip(parts, starts, sizes, strict=False):
        rows = by_rank[:, start : start + size].reshape(-1)[: part.nbytes]  # behind the last row nothing is meant
        yield part.name, rows.view(part.local.dtype).view(part.shape)
