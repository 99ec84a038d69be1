"""Log-probability, entropy and their gradient of each row of logits, in plain PyTorch.

A row has products z_v, logits y_v = transform(z_v), and x_v = y_v / temperature. With p = softmax(x):

    log-probability of token t   log p_t                d / dx_v = [v = t] - p_v
    entropy, in nats             H = -sum p_v log p_v   d / dx_v = -p_v (log p_v + H)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rljob_trainer.losses.output_head.transform import LogitTransform

_LOWEST = -1e30


class RowScores(NamedTuple):
    """Of each row, [T] each; float32, or float64 for float64 products."""

    log_probs: Tensor
    entropies: Tensor
    log_sums: Tensor
    """log sum exp x, which the backward pass takes."""


def reduce_rows(products: Tensor, targets: Tensor, temperature: Tensor, transform: LogitTransform) -> RowScores:
    """products: [T, V], used up. targets: [T] int64. temperature: [T]. Logits of -inf contribute 0 to the entropy."""
    logits, _ = _logits(products, temperature, transform)
    log_sums = logits.logsumexp(-1)
    logits.sub_(log_sums[:, None])
    log_probs = logits.gather(-1, targets[:, None])[:, 0]
    probabilities = logits.exp()
    entropies = -(probabilities.mul_(_finite(logits))).sum(-1)
    return RowScores(log_probs, entropies, log_sums)


def gradient_of_rows(
    products: Tensor, targets: Tensor, temperature: Tensor, transform: LogitTransform, scores: RowScores,
    of_log_probs: Tensor, of_entropies: Tensor | None, of_sums: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of the products, [T, V] in their type.

    products: [T, V], used up. scores: of reduce_rows. of_log_probs, of_entropies: [T], the gradients of these; None: 0.
    of_sums: [T], that of minus log_sums: of_log_probs, and those of other tokens' log-probabilities.
    """
    logits, slope = _logits(products, temperature, transform)
    logits.sub_(scores.log_sums[:, None])
    if of_entropies is None:
        gradient = logits.exp_().mul_(-of_sums[:, None])
    else:
        weighted = (_finite(logits) + scores.entropies[:, None]).mul_(of_entropies[:, None]).add_(of_sums[:, None])
        gradient = logits.exp_().mul_(weighted).neg_()
    gradient.scatter_add_(-1, targets[:, None], of_log_probs[:, None])
    gradient.mul_((transform.scale / temperature)[:, None])
    return (gradient if slope is None else gradient.mul_(slope)).to(products.dtype)


def likeliest_in_rows(
    products: Tensor, count: int, temperature: Tensor, transform: LogitTransform
) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities of the likeliest tokens of each row, [T, count]. products: [T, V], used up."""
    logits, _ = _logits(products, temperature, transform)
    best, ids = logits.topk(count)
    return ids, best - logits.logsumexp(-1)[:, None]


def logits_at(products: Tensor, ids: Tensor, temperature: Tensor, transform: LogitTransform) -> tuple[Tensor, Tensor]:
    """x of the tokens ids [T, K], and dx / dz, [T, K] each. products: [T, V], kept."""
    logits, slope = _logits(products.gather(-1, ids), temperature, transform)
    scale = (transform.scale / temperature)[:, None]
    return logits, (scale if slope is None else slope * scale).expand_as(logits)


def _logits(products: Tensor, temperature: Tensor, transform: LogitTransform) -> tuple[Tensor, Tensor | None]:
    """x, and dy / d(scale z) if that is not 1. In the memory of the products if their type can hold x."""
    logits = products if products.dtype == torch.float64 else products.float()
    if transform.scale != 1:
        logits.mul_(transform.scale)
    slope = None
    if transform.cap is not None:
        share = logits.div_(transform.cap).tanh_()
        slope = 1 - share.square()
        logits = share.mul_(transform.cap)
    return logits.div_(temperature[:, None]), slope


def _finite(log_probabilities: Tensor) -> Tensor:
    """-inf made finite, so that its product with a probability of 0 is 0."""
    return log_probabilities.clamp(min=_LOWEST)
