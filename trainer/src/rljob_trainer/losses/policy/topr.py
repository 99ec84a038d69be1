"""TOPR: good responses count in full, bad ones only as far as the policy still gives them."""

import torch

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch


def topr(batch: PolicyBatch, _settings: ResolvedAlgorithm) -> LossTerms:
    """-w A log pi, with w = 1 if A > 0, else min(1, pi(y) / pi_old(y)) of sequence y; nothing flows through w.

    Use it for off-policy data, with many updates a step: a bad response that has become unlikely is not pushed down
    any further, so the loss stays bounded without a reference or a clip range.

    Le Roux et al. 2025, Tapered Off-Policy REINFORCE: https://arxiv.org/abs/2503.14286
    """
    ratio = batch.sequence_sums(batch.log_ratio().detach()).clamp(max=0).exp()
    weight = torch.where(batch.advantages > 0, 1.0, ratio)
    return LossTerms(-weight * batch.advantages * batch.log_probs, (weight < 1) & (batch.advantages != 0))
