"""What crosses from trainer to engine: the layout of one bucket and the handle that opens its memory.

A bucket is one block of bytes, on the CPU or on a GPU, that holds many tensors at aligned offsets.
The descriptor travels from worker to worker (it is small and picklable); the bytes never do. Light: the driver imports
the protocol of engines, which names the descriptor.
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

    name: as in the Hugging Face checkpoint. shape: the full tensor's.
    dtype: torch's name of it, such as "bfloat16". offset: bytes from the start of the bucket.
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
    """A block of the sending process's anonymous shared memory, opened through /proc while that process lives."""

    pid: int
    file_descriptor: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class CudaIpcHandle:
    """The same bytes on one or several GPUs: a worker opens the block of the GPU that it runs on.

    nbytes: the same on all of them. by_device: GPU UUID -> cudaIpcMemHandle_t.
    """

    nbytes: int
    by_device: dict[str, bytes]


Handle = SharedMemoryHandle | CudaIpcHandle


@dataclass(frozen=True, slots=True)
class BucketDescriptor:
    """One bucket of one update.

    version: the policy version that the weights make. index: 0, 1, 2, ... within the update.
    """

    version: int
    index: int
    slots: tuple[TensorSlot, ...]
    handle: Handle

    def tensors(self, bucket: "Tensor") -> "Iterator[tuple[str, Tensor]]":
        """(name, view) of every tensor in the mapped `bucket`."""
        return ((slot.name, slot.view(bucket)) for slot in self.slots)


def torch_dtype(name: str) -> "torch.dtype":
    """torch's dtype of that name ("bfloat16", "float32", ...)."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def aligned(offset: int) -> int:
    """The next offset at which a tensor may start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
