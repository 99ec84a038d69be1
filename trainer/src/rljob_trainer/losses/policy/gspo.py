"""GSPO: clips the ratio of a whole sequence instead of each token's."""

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, bounded_exp, clipped_surrogate


def gspo(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-min(s A, clip(s, 1 - clipRatioLow, 1 + clipRatioHigh) A), with s = (pi(y) / pi_old(y))^(1/|y|) of sequence y.

    The mean of log r over the sequence's tokens is log s. Each token has the value of s and the gradient of its own
    log pi times s (GSPO-token), so that aggregation sequence_mean gives the gradient of s itself.

    Use it for mixture-of-experts models and long responses, where single tokens' ratios are noise. Its ratios stay
    close to 1, so its range is a thousand times smaller than that of clip.

    Zheng et al. 2025, Group Sequence Policy Optimization, sections 4.1 and 4.3: https://arxiv.org/abs/2507.18071
    """
    mean = batch.sequence_means(batch.log_ratio().detach())
    ratio = bounded_exp(batch.log_probs - batch.log_probs.detach() + mean)
    return clipped_surrogate(ratio, batch.advantages, 1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high)
