"""Choice of the next token for a batch of rows, independent of which rows are in the batch.

Each row brings its own uniform number for each position, so a response depends on its prompt, the weights and its
seed alone. One number and the inverse of the cumulative distribution replace a random number per vocabulary entry.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_trainer.types import Sampling


def uniforms(seeds: Sequence[int], count: int) -> NDArray[np.float64]:
    """[seeds, count], the first `count` uniform numbers in [0, 1) of each seed (Philox, a counter-based generator)."""
    philox = np.random.Philox(key=0)
    generator, start = np.random.Generator(philox), philox.state
    numbers = np.empty((len(seeds), count))
    for row, seed in zip(numbers, seeds, strict=True):
        start["state"]["key"][:] = seed, 0
        philox.state = start  # five times as fast as a new generator
        generator.random(out=row)
    return numbers


def choose(logits: Tensor, u: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample one token for each row.

    logits: [B, V]. u: [B] float64 in [0, 1).
    Returns token ids [B] int64 and their log-probabilities [B] float32 at the sampling temperature, before top-k
    and top-p (at temperature 1 for greedy choice).
    """
    greedy = sampling.temperature == 0
    scaled = logits.float() if greedy or sampling.temperature == 1 else logits.float() / sampling.temperature
    log_probs = torch.log_softmax(scaled, dim=-1)
    if greedy:
        tokens = log_probs.argmax(dim=-1)
    elif sampling.top_k == -1 and sampling.top_p == 1:
        tokens = _invert(log_probs.exp(), u)
    else:
        tokens = _choose_truncated(log_probs, u, sampling)
    return tokens, log_probs.gather(1, tokens[:, None])[:, 0]


def _choose_truncated(log_probs: Tensor, u: Tensor, sampling: Sampling) -> Tensor:
    """Top-k first, then top-p of what it left, as vLLM does: the likeliest tokens whose mass reaches top_p."""
    k = log_probs.shape[1] if sampling.top_k == -1 else min(sampling.top_k, log_probs.shape[1])
    ranked, order = log_probs.topk(k, dim=-1)
    probs = ranked.softmax(dim=-1)
    mass_before = probs.cumsum(dim=-1) - probs
    return order.gather(1, _invert(probs.where(mass_before < sampling.top_p, 0.0), u)[:, None])[:, 0]


def _invert(weights: Tensor, u: Tensor) -> Tensor:
    """The entry of each row at which the running sum passes u times the row's total; float64, for long tails."""
    mass = weights.cumsum(dim=-1, dtype=torch.float64)
    target = u[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True)[:, 0].clamp_(max=weights.shape[1] - 1)
