"""DPO: the log-probability ratios of a preferred and a rejected response, against the reference's."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch


def dpo(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-log sigmoid(dpoBeta (h(y+) - h(y-))), with h(y) = log pi(y) - log pi_ref(y), the sum over the response's tokens.

    y+ has the advantage 1 and y- has -1. Every token of both has the loss of their pair, so aggregation sequence_mean
    gives the mean over pairs. Nothing is clipped, and nothing corrects for the policy that sampled.

    Use it with rows of chosen and rejected responses (preset dpo), or if of a reward only the order within a prompt
    counts (preset online_dpo).

    Rafailov et al. 2023, Direct Preference Optimization, equation 7: https://arxiv.org/abs/2305.18290
    """
    assert batch.pairs is not None
    assert batch.reference_log_probs is not None
    chosen = batch.advantages > 0
    ratios = settings.dpo_beta * (batch.log_probs - batch.reference_log_probs)
    rewards = [batch.pairs.sums(torch.where(side, ratios, 0)) for side in (chosen, ~chosen)]
    losses = -logsigmoid(rewards[0] - rewards[1])
    log_probs = [batch.pairs.sums(torch.where(side, batch.log_probs, 0)) for side in (chosen, ~chosen)]
    clipped = torch.zeros_like(chosen)
    return LossTerms(batch.pairs.spread(losses, len(batch.log_probs)), clipped, _sums(*rewards, *log_probs))


@torch.no_grad()
def _sums(chosen: Tensor, rejected: Tensor, chosen_log_probs: Tensor, rejected_log_probs: Tensor) -> Tensor:
    """As PreferenceSums, [6]. All arguments: [pairs]."""
    accurate = (chosen > rejected).to(chosen.dtype)
    counted = (torch.ones_like(chosen), chosen, rejected, accurate, chosen_log_probs, rejected_log_probs)
    return torch.stack([each.sum(dtype=torch.float64) for each in counted])
