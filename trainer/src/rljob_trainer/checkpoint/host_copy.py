"""A copy of a rank's state in host memory: the checkpoint is written from it while training continues.

torch's own stager (torch.distributed.checkpoint.staging) cannot copy a DTensor in torch 2.11.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree


class HostCopy:
    """Copies into buffers that it reuses, because pinned memory and fresh pages are slow to allocate.

    torch rounds each pinned buffer up to a power of two: the 15.9 GB of a 1.5B model take 20 GB of host memory.
    """

    def __init__(self, device: torch.device, mesh: DeviceMesh) -> None:
        """device: the training device. mesh: of CPUs, in the shape of the mesh that shards the state."""
        self._mesh = mesh
        # A separate stream: copies run beside the training's kernels.
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None
        self._buffers: list[Tensor] = []

    def follow(self) -> None:
        """Called by the training thread: the next copy waits for all GPU work that this thread has queued."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())

    def take(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state with its tensors in host memory, valid until the next call; DTensors stay sharded."""
        leaves, structure = pytree.tree_flatten(state)
        shards = [_local(leaf) for leaf in leaves if isinstance(leaf, Tensor)]
        self._buffers = self._buffers_like(shards)
        copies = iter(self._buffers)
        self._fill(self._buffers, shards)
        copied = [self._like(leaf, next(copies)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(copied, structure)

    def _fill(self, buffers: Sequence[Tensor], shards: Sequence[Tensor]) -> None:
        with torch.cuda.stream(self._stream):  # None: no stream, as on a CPU
            for buffer, shard in zip(buffers, shards, strict=True):
                buffer.copy_(shard, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()

    def _buffers_like(self, shards: Sequence[Tensor]) -> list[Tensor]:
        """One buffer per shard, reused if one fits; buffers that fit no shard are freed."""
        kept: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = defaultdict(list)
        for buffer in self._buffers:
            kept[buffer.shape, buffer.dtype].append(buffer)
        return [fitting.pop() if (fitting := kept[shard.shape, shard.dtype]) else self._new(shard) for shard in shards]

    def _new(self, shard: Tensor) -> Tensor:
        return torch.empty(shard.shape, dtype=shard.dtype, pin_memory=self._stream is not None)

    def _like(self, leaf: Tensor, copy: Tensor) -> Tensor:
        if not isinstance(leaf, DTensor):
            return copy
        return DTensor.from_local(
            copy, self._mesh, leaf.placements, run_check=False, shape=leaf.shape, stride=leaf.stride()
        )


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
