"""Dual-clip PPO: bounds the loss of tokens with negative advantage and a large ratio."""

import torch

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, clipped_surrogate


def dual_clip(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """The loss `clip`, bounded for A < 0 by -c A with c = clipRatioC.

    Use it if bad tokens with a huge ratio dominate the gradient.

    Ye et al. 2020, Mastering Complex Control in MOBA Games, equation 5: https://arxiv.org/abs/1912.09729
    """
    ratio, bound = batch.ratio(), settings.clip_ratio_c
    terms = clipped_surrogate(ratio, batch.advantages, 1 - settings.clip_ratio, 1 + settings.clip_ratio)
    bounded = (batch.advantages < 0) & (ratio > bound)
    return LossTerms(torch.where(bounded, -bound * batch.advantages, terms.per_token), terms.clipped | bounded)
