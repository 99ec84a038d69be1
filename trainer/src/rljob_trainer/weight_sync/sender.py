"""The trainer's side of a weight sync."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from rljob_trainer.weight_sync.bucket import BucketDescriptor

Deliver = Callable[[BucketDescriptor], Callable[[], None]]
"""Starts delivery of a bucket to all engines; returns a function that waits until all of them have copied it."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """tensors and bytes that were sent; seconds from the first tensor to the last acknowledgement."""

    tensors: int
    bytes: int
    seconds: float


class WeightSender:
    """Sends full tensors to the engines that share this rank's node (CPU) or GPU (CUDA).

    device: "cpu" (shared memory) or "cuda" (CUDA IPC).
    dtype: the engine's, "bfloat16" or "float32".
    group: the ranks whose GPUs (cuda) or node (cpu) the engines share, on a backend that carries objects (gloo);
        None for this rank alone. All ranks of the world call `send` with the same tensors, because gathering a full
        tensor is collective; the group's first rank delivers, the others return when it has.
    """

    def __init__(self, device: str, dtype: str, bucket_bytes: int, group: dist.ProcessGroup | None = None) -> None:
        self.device, self.dtype, self.bucket_bytes, self.group = device, dtype, bucket_bytes, group

    def send(self, tensors: Iterable[tuple[str, Tensor]], version: int, deliver: Deliver) -> SyncReport:
        """Send all `tensors`; `deliver` is called on the group's first rank only.

        Raises what `deliver` or its wait raises, on every rank of the group.
        """
        raise NotImplementedError
