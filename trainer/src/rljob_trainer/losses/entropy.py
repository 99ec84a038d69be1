"""Entropy of the next-token distribution, without a second copy of the logits."""

from typing import Any

import torch
from torch import Tensor

ROWS_AT_ONCE = 256
"""Tokens per softmax: with a vocabulary of 150k in float32, 150 MiB for each temporary."""


def entropy_from_logits(logits: Tensor) -> Tensor:
    """H = -sum_v p_v log p_v of each token, in nats: [T, vocabulary] -> [T].

    Computed in float32 (float64 for float64 logits), ROWS_AT_ONCE rows at a time. The backward pass computes the
    softmax again, because autograd would keep several tensors of the logits' size. Logits of -inf contribute 0.
    """
    entropy: Tensor = _Entropy.apply(logits)
    return entropy


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        entropy = torch.cat([-_information(rows)[1].sum(-1) for rows in logits.split(ROWS_AT_ONCE)])
        ctx.save_for_backward(logits, entropy)
        return entropy

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        """dH / dx_v = -p_v (log p_v + H)."""
        logits, entropy = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        parts = zip(*(x.split(ROWS_AT_ONCE) for x in (logits, entropy, grad_outputs[0], gradient)), strict=True)
        for rows, row_entropy, upstream, target in parts:
            probabilities, weighted = _information(rows)
            target.copy_(-upstream[:, None] * (weighted + probabilities * row_entropy[:, None]))
        return gradient


def _information(rows: Tensor) -> tuple[Tensor, Tensor]:
    """p and p log p, with 0 log 0 = 0."""
    log_probs = torch.log_softmax(rows if rows.dtype == torch.float64 else rows.float(), dim=-1)
    probabilities = log_probs.exp()
    return probabilities, probabilities * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
