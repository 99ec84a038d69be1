"""What a rank says about its node: bandwidth of host memory and of a volume, errors and clocks of its GPU."""

import os
import tempfile
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from rljob_trainer.preflight.bandwidth import GIGA
from rljob_trainer.preflight.measured import Gpu, Health

_MEMORY_BYTES = 128 << 20  # larger than most caches
_DISK_BYTES = 32 << 20
_REPEATS = 3


def examine(rank: int, device: torch.device, folder: str | None) -> Health:
    """folder: on the volume whose bandwidth is measured; None leaves that out."""
    skipped: list[str] = []
    written = read = gpu = None
    if folder is not None:
        try:
            written, read = disk_bandwidth(Path(folder))
        except OSError as error:
            skipped.append(f"disk bandwidth of {folder}: {error}")
    if device.type == "cuda":
        try:
            gpu = _gpu(str(torch.cuda.get_device_properties(device).uuid))
        except Exception as error:  # noqa: BLE001 the module may be missing, or the driver may refuse
            skipped.append(f"GPU errors and clocks: {error}")
    return Health(rank, memory_bandwidth(), written, read, gpu, tuple(skipped))


def memory_bandwidth() -> float:
    """GB/s of a copy in host memory: bytes read and written. The best of some repeats, with this process's threads."""
    source = torch.zeros(_MEMORY_BYTES, dtype=torch.uint8)
    target = torch.ones_like(source)
    best = 0.0
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        target.copy_(source)
        best = max(best, 2 * _MEMORY_BYTES / (time.perf_counter() - begin) / GIGA)
    return best


def disk_bandwidth(folder: Path) -> tuple[float, float]:
    """GB/s of writing a file with fsync, and of reading it after its pages were dropped. Raises OSError."""
    content = os.urandom(_DISK_BYTES)  # a file system may compress
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".rljob-preflight-") as file:
        begin = time.perf_counter()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        written = _DISK_BYTES / (time.perf_counter() - begin) / GIGA
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        Path(file.name).read_bytes()
        return written, _DISK_BYTES / (time.perf_counter() - begin) / GIGA


def _gpu(uuid: str) -> Gpu:
    """By NVML. uuid: without its prefix. Raises ImportError or NVMLError."""
    nvml: Any = import_module("pynvml")
    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())

        def asked(call: str, *arguments: Any) -> int | None:
            with suppress(nvml.NVMLError):  # not every GPU has ECC
                return int(getattr(nvml, call)(handle, *arguments))
            return None

        return Gpu(
            name=str(nvml.nvmlDeviceGetName(handle)),
            ecc_corrected=_errors(nvml, asked, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=_errors(nvml, asked, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            sm_clock=asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            sm_clock_max=asked("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock=asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        )
    finally:
        nvml.nvmlShutdown()


def _errors(nvml: Any, asked: Any, kind: int) -> int | None:
    return asked("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC)
