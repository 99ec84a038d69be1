"""The descriptor of one bucket: its layout and the handle that opens its memory.

A bucket is one block of bytes, on the CPU or a GPU, with many tensors at aligned offsets. Light: the driver imports it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ALIGNMENT = 256
"""Bytes. CUDA's own allocation alignment, and a multiple of every vector width."""


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """One tensor inside a bucket.

    name: as in the Hugging Face checkpoint. shape: of the full tensor.
    dtype: torch's name, such as "bfloat16". offset: bytes from the start of the bucket.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * torch_dtype(self.dtype).itemsize

    def view(self, bucket: "Tensor") -> "Tensor":
        """The tensor inside `bucket` [bytes] uint8, sharing its memory."""
        raw = bucket[self.offset : self.offset + self.nbytes]
        return raw.view(torch_dtype(self.dtype)).view(self.shape)


@dataclass(frozen=True, slots=True)
class SharedMemoryHandle:
    """A block of anonymous shared memory, opened through /proc while the sending process lives."""

    pid: int
    file_descriptor: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CudaIpcHandle:
    """The same bytes on one or several GPUs; an engine opens the block on its own GPU.

    by_device: GPU UUID -> cudaIpcMemHandle_t.
    """

    nbytes: int
    by_device: dict[str, bytes]


Handle = SharedMemoryHandle | CudaIpcHandle


@dataclass(frozen=True, slots=True)
class BucketDescriptor:
    """One bucket of one update. version: the new policy version. index: 0, 1, 2, ... within the update."""

    version: int
    index: int
    slots: tuple[TensorSlot, ...]
    handle: Handle

    def tensors(self, bucket: "Tensor") -> "Iterator[tuple[str, Tensor]]":
        """(name, view) of every tensor in the mapped `bucket`."""
        return ((slot.name, slot.view(bucket)) for slot in self.slots)


def torch_dtype(name: str) -> "torch.dtype":
    """The torch dtype of that name, such as "bfloat16"."""
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def aligned(offset: int) -> int:
    """The next offset at which a tensor may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
