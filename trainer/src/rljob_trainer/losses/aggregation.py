"""Weights of tokens in a minibatch's loss, independent of its split into ranks and micro-batches."""

import torch
from torch import Tensor

from rljob_api.v1alpha1.algorithm import Aggregation
from rljob_trainer.losses.totals import BatchTotals


def token_weights(
    aggregation: Aggregation, lengths: Tensor, totals: BatchTotals, max_response_tokens: int, mask: Tensor | None = None
) -> Tensor:
    """The weight of each token's loss: float32 [sum(lengths)], on the device of lengths.

    lengths: [n], int64, tokens in the loss of each of n trajectories, a part of the minibatch.
    totals: counts over the whole minibatch after masking.
    mask: [sum(lengths)], bool, the tokens that count; None: all. The others get weight 0.

    The sum of weight x loss over the minibatch is, over the tokens that count,
      token_mean      the mean over all of them: DAPO, https://arxiv.org/abs/2503.14476, section 3.3
      sequence_mean   the mean over trajectories of each one's mean: GRPO, https://arxiv.org/abs/2402.03300, equation 3
      dr_grpo         their sum / (trajectories x max_response_tokens): Dr.GRPO, https://arxiv.org/abs/2503.20783
    """
    counting = lengths if mask is None else _counting(lengths, mask)
    each = _trajectory_weights(aggregation, counting, totals, max_response_tokens)
    weights = each.to(torch.float32).repeat_interleave(lengths)
    return weights if mask is None else weights * mask


def _trajectory_weights(
    aggregation: Aggregation, counting: Tensor, totals: BatchTotals, max_response_tokens: int
) -> Tensor:
    tokens, trajectories = max(1, totals.tokens), max(1, totals.trajectories)  # all tokens may have been rejected
    match aggregation:
        case "token_mean":
            return torch.full_like(counting, 1 / tokens, dtype=torch.float64)
        case "sequence_mean":
            return 1 / (counting.double().clamp(min=1) * trajectories)
        case "dr_grpo":
            return torch.full_like(counting, 1 / (trajectories * max_response_tokens), dtype=torch.float64)


def _counting(lengths: Tensor, mask: Tensor) -> Tensor:
    """Tokens of each trajectory that count, [n]."""
    owners = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
    return torch.zeros_like(lengths).index_add_(0, owners, mask.to(lengths.dtype))
