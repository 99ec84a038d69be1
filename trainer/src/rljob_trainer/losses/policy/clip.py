"""The clipped surrogate of PPO."""

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch, clipped_surrogate


def clip(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-min(r A, clip(r, 1 - clipRatio, 1 + clipRatio) A), with r = pi / pi_old of the token.

    Use it as the first choice; it is the loss of GRPO and PPO.

    Schulman et al. 2017, PPO, equation 7: https://arxiv.org/abs/1707.06347
    """
    low, high = 1 - settings.clip_ratio, 1 + settings.clip_ratio
    return clipped_surrogate(batch.ratio(), batch.advantages, low, high)
