"""The two losses of the entropy mechanism. losses/covariance.py chooses their tokens in the whole minibatch."""

import torch

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, clipped_surrogate


def clip_cov(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """decoupled_clip, and 0 for chosen tokens: a random clipCovRatio of all, if clipCovLb < covariance < clipCovUb.

    Use it if entropy collapses: tokens of high covariance between log pi and A are those that make it fall.

    Cui et al. 2025, The Entropy Mechanism: https://arxiv.org/abs/2505.22617
    """
    low, high = 1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high
    terms = clipped_surrogate(batch.ratio(), batch.advantages, low, high)
    if batch.chosen is None:
        return terms
    left_out = batch.chosen & ~terms.clipped
    return LossTerms(torch.where(left_out, 0, terms.per_token), terms.clipped | left_out)


def kl_cov(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-r A, plus ppoKlCoef |log r| for chosen tokens: the klCovRatio of all with the highest covariance.

    Use it as clip_cov; it holds those tokens near the old policy instead of leaving them out, which is steadier.

    Cui et al. 2025, The Entropy Mechanism: https://arxiv.org/abs/2505.22617
    """
    per_token, log_ratio = -batch.ratio() * batch.advantages, batch.log_ratio()
    unclipped = torch.zeros_like(per_token, dtype=torch.bool)
    if batch.chosen is None:
        return LossTerms(per_token, unclipped)
    return LossTerms(per_token + torch.where(batch.chosen, settings.ppo_kl_coef * log_ratio.abs(), 0), unclipped)
