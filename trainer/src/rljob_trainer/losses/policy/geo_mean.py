"""GMPO: the geometric mean of a sequence's token ratios, each clipped."""

import torch

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, bounded_exp


def geo_mean(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-A exp(mean over the sequence of c), with c = min(log r, clipRatioHigh) if A > 0, else max(log r, -clipRatioLow).

    The bounds are of log r, so 0.4 allows ratios from e^-0.4 to e^0.4. A is the mean over the sequence. Every token of
    the sequence has the same loss, so aggregation sequence_mean gives the paper's objective.

    Use it if single tokens with extreme ratios make the gradient's norm jump.

    Zhao et al. 2025, Geometric-Mean Policy Optimization: https://arxiv.org/abs/2507.20673
    """
    log_ratio, low, high = batch.log_ratio(), -settings.clip_ratio_low, settings.clip_ratio_high
    good = batch.advantages > 0
    bounded = torch.where(good, log_ratio.clamp(max=high), log_ratio.clamp(min=low))
    ratio = bounded_exp(batch.sequence_means(bounded))
    return LossTerms(-batch.sequence_means(batch.advantages) * ratio, (bounded != log_ratio) & (batch.advantages != 0))
