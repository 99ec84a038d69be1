"""The trainer's side of a weight sync."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_trainer.errors import InfrastructureError, RLJobError
from rljob_trainer.weights.bucket import BucketDescriptor, CudaIpcHandle, Handle, TensorSlot, aligned
from rljob_trainer.weights.transport import Block, allocate

Deliver = Callable[[BucketDescriptor], Callable[[], None]]
"""Starts to deliver a bucket to all engines; returns a function that waits until all have copied it."""


class WeightSender:
    """Sends full tensors to the engines that share this rank's node (CPU) or GPU (CUDA).

    device: "cpu" (shared memory) or "cuda" (CUDA IPC).
    dtype: the engine's, "bfloat16" or "float32".
    group: the ranks whose GPUs (cuda) or node (cpu) the engines share (gloo); None for this rank alone. All ranks of
        the world call `send` with the same tensors, because gathering a full tensor is collective; the group's first
        rank delivers, and the others wait for it.
    """

    def __init__(self, device: str, dtype: str, bucket_bytes: int, group: dist.ProcessGroup | None = None) -> None:
        self._device, self._dtype, self._bucket_bytes = device, dtype, bucket_bytes
        self._group = group
        # Engines on a CPU read the first rank's memory; engines on a GPU read that of the rank on their GPU.
        self._writes = device == "cuda" or group is None or dist.get_rank(group) == 0

    @torch.no_grad()
    def send(self, tensors: Iterable[tuple[str, Tensor]], version: int, deliver: Deliver) -> int:
        """Send all `tensors`; the group's first rank calls `deliver`. Returns the bytes that this rank wrote.

        Raises the exception of `deliver` or its wait; the group's other ranks then raise InfrastructureError.
        """
        sent = 0
        delivery, rest = _Delivery(self._group, deliver), iter(tensors)
        try:
            with closing(_Buckets(self._device, self._dtype, self._bucket_bytes, writes=self._writes)) as buckets:
                for index, (slots, block) in enumerate(buckets.pack(rest)):
                    delivery.wait()  # before the next round writes into the other block
                    delivery.start(version, index, slots, block)
                    sent += sum(slot.nbytes for slot in slots) if self._writes else 0
                delivery.wait()
        except RLJobError:
            deque(rest, maxlen=0)  # ranks of other groups continue to gather, which needs all ranks
            raise
        return sent


class _Buckets:
    """Packs tensors into two blocks in turn. writes: False on a rank whose memory no engine reads."""

    def __init__(self, device: str, dtype: str, nbytes: int, *, writes: bool) -> None:
        self._device, self._dtype, self._nbytes, self._writes = device, dtype, nbytes, writes
        self._blocks: list[Block | None] = [None, None]

    def pack(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[tuple[TensorSlot, ...], Block | None]]:
        """Yield (slots, block) per bucket; the block is not overwritten during the next round."""
        slots: list[TensorSlot] = []
        end = turn = 0
        for name, tensor in tensors:
            slot = TensorSlot(name, tuple(tensor.shape), self._dtype_of(tensor), end)
            if slots and end + slot.nbytes > self._nbytes:
                yield tuple(slots), self._blocks[turn]
                slots, turn, slot = [], 1 - turn, replace(slot, offset=0)
            if self._writes:
                slot.view(self._block(turn, slot.offset + slot.nbytes).data).copy_(tensor)
            slots.append(slot)
            end = aligned(slot.offset + slot.nbytes)
        if slots:
            yield tuple(slots), self._blocks[turn]

    def _dtype_of(self, tensor: Tensor) -> str:
        return self._dtype if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")

    def _block(self, turn: int, nbytes: int) -> Block:
        """The block of that turn; a tensor larger than a bucket gets a larger block for itself."""
        block = self._blocks[turn]
        if block is None or block.data.numel() < nbytes:
            if block is not None:
                block.close()
            block = self._blocks[turn] = allocate(self._device, max(nbytes, self._nbytes))
        return block

    def close(self) -> None:
        for block in self._blocks:
            if block is not None:
                block.close()


class _Delivery:
    """Delivers one bucket at a time. The group's first rank delivers and broadcasts the outcome to the others."""

    def __init__(self, group: dist.ProcessGroup | None, deliver: Deliver) -> None:
        self._group, self._deliver = group, deliver
        self._leads = group is None or dist.get_rank(group) == 0
        self._acknowledged: Callable[[], None] | None = None
        self._under_way = False

    def start(self, version: int, index: int, slots: tuple[TensorSlot, ...], block: Block | None) -> None:
        handle = self._merged(block.handle() if block is not None else None)
        self._under_way = True
        if handle is not None:
            with self._broadcasting_failure():
                self._acknowledged = self._deliver(BucketDescriptor(version, index, slots, handle))

    def wait(self) -> None:
        """Wait until all engines have copied the bucket."""
        if not self._under_way:
            return
        self._under_way = False
        if self._acknowledged is not None:
            with self._broadcasting_failure():
                self._acknowledged()
        if not self._broadcast(succeeded=True):
            raise InfrastructureError("the rank that delivers weights to the engines failed")

    @contextmanager
    def _broadcasting_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._broadcast(succeeded=False)
            raise

    def _broadcast(self, *, succeeded: bool) -> bool:
        """The first rank's outcome, on every rank."""
        outcome = [succeeded]
        if self._group is not None:
            dist.broadcast_object_list(outcome, src=dist.get_global_rank(self._group, 0), group=self._group)
        return outcome[0]

    def _merged(self, handle: Handle | None) -> Handle | None:
        """The handles of all ranks' GPUs as one on the first rank; None on the others."""
        if self._group is None or not isinstance(handle, CudaIpcHandle):
            return handle
        everyone: list[Any] | None = [None] * dist.get_world_size(self._group) if self._leads else None
        dist.gather_object(handle, everyone, dst=dist.get_global_rank(self._group, 0), group=self._group)
        if everyone is None:
            return None
        return CudaIpcHandle(handle.nbytes, {uuid: ipc for each in everyone for uuid, ipc in each.by_device.items()})
