"""CISPO: clips the weight of a token and keeps its gradient."""

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch


def cispo(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-w A log pi, with the weight w = clip(r, 1 - clipRatioLow, 1 + clipRatioHigh), through which nothing flows.

    r = pi / pi_old of the token. clipRatioLow 1 means no lower bound.

    Use it if rare but important tokens ("wait", "however") would be clipped away after the first of several updates.

    MiniMax 2025, MiniMax-M1: https://arxiv.org/abs/2506.13585
    """
    ratio = batch.ratio().detach()
    weight = ratio.clamp(1 - settings.clip_ratio_low, 1 + settings.clip_ratio_high)
    return LossTerms(-weight * batch.advantages * batch.log_probs, weight != ratio)
