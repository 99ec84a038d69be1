"""The memory that all processes take of the first visible GPU, looked at twenty times a second."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

EVERY = 0.05
"""Seconds."""

Interval = tuple[float, float]
"""Unix seconds."""


@dataclass(slots=True)
class Watch:
    """seen: (unix seconds, bytes)."""

    seen: list[tuple[float, int]] = field(default_factory=list)

    def peak(self, intervals: Sequence[Interval]) -> int | None:
        """Bytes; None if no look fell into the intervals."""
        inside = [used for at, used in self.seen if any(start <= at <= end for start, end in intervals)]
        return max(inside, default=None)


@contextmanager
def watching() -> Iterator[Watch]:
    """Look until the end of the block. Without a GPU nothing is seen."""
    watch, ended = Watch(), threading.Event()
    thread = threading.Thread(target=_look, args=(watch, ended), daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()


def _look(watch: Watch, ended: threading.Event) -> None:
    with suppress(ImportError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            gpu = pynvml.nvmlDeviceGetHandleByIndex(_first_visible())
            while not ended.wait(EVERY):
                watch.seen.append((time.time(), int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used)))


def _first_visible() -> int:
    """NVML's index of CUDA's first GPU."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    return int(first) if first.isdecimal() else 0
