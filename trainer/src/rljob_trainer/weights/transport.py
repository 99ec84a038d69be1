"""Memory that the trainer allocates and the engine maps.

On the CPU it is an anonymous file (memfd) that the engine opens through /proc/PID/fd, so that a crash leaves nothing in
/dev/shm and its size does not matter. Both processes need the same user and PID namespace. On a GPU see `cuda_ipc`.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.weights import cuda_ipc
from rljob_trainer.weights.bucket import CudaIpcHandle, Handle, SharedMemoryHandle


class Block(Protocol):
    """One bucket's memory in the process that owns it. data: [bytes] uint8."""

    data: Tensor

    def handle(self) -> Handle:
        """The handle with which another process opens the block, after all writes are done."""

    def close(self) -> None:
        """Free the memory and invalidate `data`."""


def allocate(device: str, nbytes: int) -> Block:
    """A block of this process: shared memory for "cpu", memory of the current GPU for "cuda"."""
    return CudaIpcBlock(nbytes) if device == "cuda" else SharedMemoryBlock(nbytes)


class SharedMemoryBlock:
    def __init__(self, nbytes: int) -> None:
        self._fd = os.memfd_create("rljob-weights")
        os.ftruncate(self._fd, nbytes)
        self.data = torch.frombuffer(mmap.mmap(self._fd, nbytes), dtype=torch.uint8)
        self._handle = SharedMemoryHandle(os.getpid(), self._fd, nbytes)

    def handle(self) -> Handle:
        return self._handle

    def close(self) -> None:
        os.close(self._fd)
        del self.data


class CudaIpcBlock:
    def __init__(self, nbytes: int) -> None:
        self._block = cuda_ipc.allocate(nbytes)
        self.data = self._block.tensor()
        self._ipc = CudaIpcHandle(nbytes, {cuda_ipc.device_uuid(): cuda_ipc.export_block(self._block)})

    def handle(self) -> Handle:
        torch.cuda.current_stream().synchronize()
        return self._ipc

    def close(self) -> None:
        del self.data
        cuda_ipc.free(self._block)


@contextmanager
def opened(handle: Handle) -> Iterator[Tensor]:
    """The block's bytes [bytes] uint8 in a process other than its owner (on the CPU, in any process).

    On exit, GPU work that reads them is finished and the block is unmapped, so that its owner may write or free it.
    Raises InfrastructureError if the owner is dead or has no block on this process's GPU.
    """
    if isinstance(handle, SharedMemoryHandle):
        yield _map_shared(handle)
        return
    here = cuda_ipc.device_uuid()
    if here not in handle.by_device:
        raise InfrastructureError(
            f"no trainer rank sent weights for GPU {here}, only for {', '.join(handle.by_device)}"
        )
    block = cuda_ipc.open_block(handle.by_device[here], handle.nbytes)
    try:
        yield block.tensor()
        torch.cuda.current_stream().synchronize()
    finally:
        cuda_ipc.close_block(block)


def _map_shared(handle: SharedMemoryHandle) -> Tensor:
    path = f"/proc/{handle.pid}/fd/{handle.file_descriptor}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise InfrastructureError(f"the rank's weights in {path} cannot be opened: {error.strerror}") from error
    try:
        return torch.frombuffer(mmap.mmap(fd, handle.nbytes), dtype=torch.uint8)
    finally:
        os.close(fd)
