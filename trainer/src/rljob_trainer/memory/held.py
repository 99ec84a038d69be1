"""What held a GPU's memory when an allocation failed. Light."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": GIB}
_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_PARTS = {
    "wanted": rf"Tried to allocate {_SIZE}",
    "total": rf"total capacity of {_SIZE}",
    "free": rf"of which {_SIZE} is free",
    "process": rf"this process has {_SIZE} memory in use",
    "allocated": rf"{_SIZE} is allocated by PyTorch",
    "unused": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
"""Where torch's error has each size. https://github.com/pytorch/pytorch/blob/main/c10/cuda/CUDACachingAllocator.cpp"""


@dataclass(frozen=True, slots=True)
class Held:
    """A GPU's memory in bytes as an allocation failed; 0 is unknown or nothing.

    wanted: the allocation. total: the GPU's memory. free: what no process held.
    parts: what this process held, by name, the largest first.
    unused: what its allocator had reserved and did not use.
    others: what other processes held.
    """

    wanted: int = 0
    total: int = 0
    free: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)
    unused: int = 0
    others: int = 0

    @classmethod
    def of(cls, text: str, known: Mapping[str, int], rest: str) -> "Held":
        """Read the sizes of torch's error, or ask the GPU for those that `text` lacks.

        known: parts whose size the caller knows. rest: the name of what else this process had allocated.
        """
        sizes = _asked() | {
            name: _bytes(*found[0]) for name, each in _PARTS.items() if (found := re.findall(each, text))
        }
        parts = {name: size for name, size in known.items() if size}
        if (more := sizes.get("allocated", 0) - sum(parts.values())) > 0:
            parts[rest] = more
        unused, total, free = (sizes.get(name, 0) for name in ("unused", "total", "free"))
        process = sizes.get("process") or sum(parts.values()) + unused
        return cls(
            wanted=sizes.get("wanted", 0),
            total=total,
            free=free,
            parts=dict(sorted(parts.items(), key=lambda part: -part[1])),
            unused=unused,
            others=max(total - free - process, 0),
        )

    def __str__(self) -> str:
        """Sizes in GiB, as sentences; empty if none is known."""
        sentences = []
        if self.total:
            wanted = f"{_gib(self.wanted)} GiB more were needed, and " if self.wanted else ""
            sentences.append(f"{wanted}{_gib(self.free)} of {_gib(self.total)} GiB were free")
        held = [f"{name} {_gib(size)}" for name, size in self.parts.items()]
        held += [f"reserved but unused {_gib(self.unused)}"] if self.unused else []
        held += [f"other processes {_gib(self.others)}"] if self.others else []
        if held:
            sentences.append(f"held, in GiB: {', '.join(held)}")
        return "; ".join(sentences)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}" if size >= GIB // 10 else f"{size / GIB:.2g}"


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _asked() -> dict[str, int]:
    """What the GPU and torch's allocator say now; empty without a GPU."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    free, total = torch.cuda.mem_get_info()
    allocated = torch.cuda.memory_allocated()
    return {"total": total, "free": free, "allocated": allocated, "unused": torch.cuda.memory_reserved() - allocated}
