"""The first master weights of a model that was published in the type in which it computes.

A module computes with bfloat16 copies of float32 masters. The values of a published bfloat16 model lie on bfloat16's
grid, so a copy changes only when the optimizer has moved its master by half the distance to the next value: for a
weight of 0.05, 1.2e-4, which takes a hundred updates at a learning rate of 1e-6. So each master begins at a random
place between its value and half way to the next. Its copy is the same; an update then changes as many copies as its
size is of that distance, and what they compute changes on average as much as the masters do.

It is stochastic rounding that is drawn once: Gupta et al. 2015, https://arxiv.org/abs/1502.02551
"""

from collections.abc import Iterable

import torch
from torch import Tensor

_LOW = 1 << 16
"""A float32 number is a bfloat16 number and 16 bits more. Read as integers, both are in the order of their sizes, so
what is less than half of this away rounds to the same bfloat16 number, whatever its exponent."""

_PART = 1 << 22
"""Elements at a time: the work takes some bytes for each."""


@torch.no_grad()
def move_off_grid(weights: Iterable[Tensor], seed: int) -> None:
    """Move float32 weights that bfloat16 holds exactly off its grid, in place.

    What is off it stays: weights that were trained in float32, and the second time a tensor is given. Zeros stay too.
    """
    draw = torch.Generator().manual_seed(seed)
    for weight in weights:
        if weight.dtype is torch.float32:
            bits = torch.atleast_1d(weight.view(torch.int32))
            for rows in bits.split(max(1, _PART * len(bits) // max(1, bits.numel()))):
                _move(rows, draw)


def _move(bits: Tensor, draw: torch.Generator) -> None:
    by = torch.empty_like(bits).random_(1 - _LOW // 2, _LOW // 2, generator=draw)
    by.masked_fill_((bits & (_LOW - 1)) != 0, 0)
    by.masked_fill_((bits << 1) == 0, 0)  # zero, whatever its sign
    bits += by
