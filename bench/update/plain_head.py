"""The output head as it was before it was fused: each chunk is a checkpoint of plain PyTorch operations."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rljob_trainer.losses.output_head import LogitTransform

_ELEMENTS = 1 << 26
"""Logits of a chunk."""


def score_tokens(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float | Tensor,
    transform: LogitTransform, *, entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As output_head.score_tokens, of a model that does not change its logits."""
    assert transform == LogitTransform()
    rows = max(128, _ELEMENTS // len(weight))
    heat = torch.as_tensor(temperature, device=hidden.device).expand(len(hidden))
    parts: list[Any] = [
        checkpoint(_score, each, weight, bias, wanted, scale, entropy_gradient, use_reentrant=False)
        for each, wanted, scale in zip(hidden.split(rows), targets.split(rows), heat.split(rows), strict=True)
    ]
    log_probs, entropies = zip(*parts, strict=True)
    return torch.cat(log_probs), torch.cat(entropies)


def _score(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logits = torch.nn.functional.linear(hidden, weight, bias).float() / temperature[:, None]
    log_probs = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        log_p = logits.log_softmax(-1)
        entropies = -(log_p.exp() * log_p).sum(-1)
    return log_probs, entropies
