"""How the losses of tokens become the one loss of a minibatch, whatever ranks and micro-batches it is split into."""

import torch
from torch import Tensor

from rljob_api.v1alpha1.algorithm import Aggregation
from rljob_trainer.losses.totals import BatchTotals


def token_weights(aggregation: Aggregation, lengths: Tensor, totals: BatchTotals, max_response_tokens: int) -> Tensor:
    """What each token's loss counts: float32 [sum(lengths)], on the device of lengths.

    lengths: [n], int64, response tokens of the n responses at hand, a part of the minibatch.

    The sum of weight x loss over all tokens of the minibatch is
      token_mean      the mean over all tokens: DAPO, https://arxiv.org/abs/2503.14476, section 3.3
      sequence_mean   the mean over responses of each one's mean: GRPO, https://arxiv.org/abs/2402.03300, equation 3
      dr_grpo         the sum over tokens / (responses x max_response_tokens): Dr.GRPO, https://arxiv.org/abs/2503.20783
    """
    per_response = _response_weights(aggregation, lengths, totals, max_response_tokens)
    return per_response.to(torch.float32).repeat_interleave(lengths)


def _response_weights(
    aggregation: Aggregation, lengths: Tensor, totals: BatchTotals, max_response_tokens: int
) -> Tensor:
    match aggregation:
        case "token_mean":
            return torch.full_like(lengths, 1 / totals.tokens, dtype=torch.float64)
        case "sequence_mean":
            return 1 / (lengths.double() * totals.responses)
        case "dr_grpo":
            return torch.full_like(lengths, 1 / (totals.responses * max_response_tokens), dtype=torch.float64)
