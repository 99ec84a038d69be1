"""DAPO's clip-higher: a larger upper bound lets unlikely tokens grow and keeps entropy."""

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, clipped_surrogate


def decoupled_clip(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-min(r A, clip(r, 1 - clipRatioLow, 1 + clipRatioHigh) A), with r = pi / pi_old of the token.

    Use it if entropy falls early and the policy stops exploring.

    Yu et al. 2025, DAPO, section 3.1: https://arxiv.org/abs/2503.14476
    """
    low, high = 1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high
    return clipped_surrogate(batch.ratio(), batch.advantages, low, high)
