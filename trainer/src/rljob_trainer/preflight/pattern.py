"""The content of buffers, so that every element of a result can be compared with what it should be.

    element i of rank r        i mod period + r mod 31
    its sum over all ranks     ranks x (i mod period) + sum of r mod 31

All values are whole numbers below 2^24, so float32 holds them and their sums exactly, in whichever order NCCL adds. The
period is odd, so a block that lands a power of two away from its place is found.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 1 << 23
_PERIOD = 4093  # a prime number
_RANKS = 31
_CHUNK = 1 << 24
"""Elements that are compared at once: it bounds the memory for the comparison."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Element i is scale x (i mod period) + offset."""

    period: int
    scale: int
    offset: int

    def fill(self, buffer: Tensor, start: int = 0) -> None:
        """buffer: [n] float32. start: index of its first element."""
        for at in range(0, buffer.numel(), _CHUNK):
            part = buffer[at : at + _CHUNK]
            part.copy_(self._values(part, start + at))

    def wrong(self, buffer: Tensor, start: int = 0) -> int:
        """How many elements differ; NaN does."""
        return sum(
            int((part != self._values(part, start + at)).sum())
            for at in range(0, buffer.numel(), _CHUNK)
            for part in (buffer[at : at + _CHUNK],)
        )

    def _values(self, part: Tensor, start: int) -> Tensor:
        index = torch.arange(start, start + part.numel(), device=part.device)
        return ((index % self.period) * self.scale + self.offset).to(part.dtype)


def of_rank(rank: int, ranks: int) -> Pattern:
    """What a rank sends."""
    return Pattern(_period(ranks), 1, rank % _RANKS)


def of_sum(ranks: int) -> Pattern:
    """The sum of what all ranks send."""
    return Pattern(_period(ranks), ranks, sum(rank % _RANKS for rank in range(ranks)))


def _period(ranks: int) -> int:
    return min(_PERIOD, _LARGEST // ranks | 1)
