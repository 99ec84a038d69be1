"""The four functions of the CUDA runtime that share a block of GPU memory between processes.

torch's own export (`UntypedStorage._share_cuda_`) counts one reader for each handle; a bucket has as many readers as
there are engines on its GPU. A block from cudaMalloc has none of that state, and does not depend on how torch's
allocator is configured (expandable segments cannot be exported with cudaIpcGetMemHandle).
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rljob_trainer.errors import InfrastructureError

_LAZY_PEER_ACCESS = 1  # cudaIpcMemLazyEnablePeerAccess, the only flag there is


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
        """[nbytes] uint8, sharing the memory; not to be used after the block is freed or closed."""
        return torch.as_tensor(self, device=torch.device("cuda", torch.cuda.current_device()))


def device_uuid() -> str:
    """The current GPU's UUID: the same in every process, whatever CUDA_VISIBLE_DEVICES calls the GPU."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def allocate(nbytes: int) -> DeviceBlock:
    pointer = ctypes.c_void_p()
    torch.cuda.current_stream()  # makes the device's context
    _call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(nbytes))
    assert pointer.value is not None
    return DeviceBlock(pointer.value, nbytes)


def free(block: DeviceBlock) -> None:
    _call("cudaFree", ctypes.c_void_p(block.pointer))


def export_block(block: DeviceBlock) -> bytes:
    """The handle that another process opens the block with."""
    handle = _MemHandle()
    _call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(block.pointer))
    return bytes(handle)


def open_block(handle: bytes, nbytes: int) -> DeviceBlock:
    """Map another process's block; close it before that process frees it."""
    pointer = ctypes.c_void_p()
    torch.cuda.current_stream()
    _call(
        "cudaIpcOpenMemHandle",
        ctypes.byref(pointer),
        _MemHandle.from_buffer_copy(handle),
        ctypes.c_uint(_LAZY_PEER_ACCESS),
    )
    assert pointer.value is not None
    return DeviceBlock(pointer.value, nbytes)


def close_block(block: DeviceBlock) -> None:
    _call("cudaIpcCloseMemHandle", ctypes.c_void_p(block.pointer))


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL:
    """The CUDA runtime that torch has loaded."""
    torch.cuda.init()
    library = ctypes.CDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    library.cudaGetErrorString.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_runtime(), name)(*arguments)
    if status != 0:
        raise InfrastructureError(f"{name} failed: {_runtime().cudaGetErrorString(status).decode()}")
