"""Share a block of GPU memory between processes with the CUDA runtime.

torch's own export (`UntypedStorage._share_cuda_`) counts one reader per handle, but several engines may read a bucket.
cudaMalloc also works with expandable segments, which cudaIpcGetMemHandle cannot export.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.errors import InfrastructureError

_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess, the only flag

_OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


class _MemHandle(ctypes.Structure):
    """cudaIpcMemHandle_t."""

    _fields_ = [("reserved", ctypes.c_ubyte * 64)]


class DeviceBlock:
    """`nbytes` of memory on the current GPU, as CUDA's array interface describes it to torch."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.pointer, self.nbytes = pointer, nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.pointer, False), "version": 3, "strides": None}

    def tensor(self) -> Tensor:
        """[nbytes] uint8, a view of the memory; invalid after the block is freed or closed."""
        return torch.as_tensor(self, device=torch.device("cuda", torch.cuda.current_device()))


def device_uuid() -> str:
    """The current GPU's UUID, which does not depend on CUDA_VISIBLE_DEVICES."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def allocate(nbytes: int) -> DeviceBlock:
    pointer = ctypes.c_void_p()
    torch.cuda.current_stream()  # creates the device's context
    _call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
    assert pointer.value is not None
    return DeviceBlock(pointer.value, nbytes)


def free(block: DeviceBlock) -> None:
    _call("cudaFree", ctypes.c_void_p(block.pointer))


def export_block(block: DeviceBlock) -> bytes:
    """The handle with which another process opens the block."""
    handle = _MemHandle()
    _call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(block.pointer))
    return bytes(handle)


def open_block(handle: bytes, nbytes: int) -> DeviceBlock:
    """Map another process's block. Close it before that process frees it."""
    pointer = ctypes.c_void_p()
    torch.cuda.current_stream()
    flags, source = ctypes.c_uint(_LAZY_PEER_ACCESS), _MemHandle.from_buffer_copy(handle)
    _call("cudaIpcOpenMemHandle", ctypes.byref(pointer), source, flags)
    assert pointer.value is not None
    return DeviceBlock(pointer.value, nbytes)


def close_block(block: DeviceBlock) -> None:
    _call("cudaIpcCloseMemHandle", ctypes.c_void_p(block.pointer))


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL:
    """The CUDA runtime that torch uses."""
    torch.cuda.init()
    library = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_runtime(), name)(*arguments)
    if status == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"CUDA out of memory: {name} failed")
    if status != 0:
        raise InfrastructureError(f"{name} failed: {_runtime().cudaGetErrorString(status).decode()}")
