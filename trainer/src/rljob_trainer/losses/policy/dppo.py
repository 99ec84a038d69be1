"""DPPO: a token leaves the loss once the policy's divergence at its position exceeds a bound, not its ratio."""

import torch
from torch import Tensor

from rljob_api.resolve import ResolvedAlgorithm
from rljob_trainer.losses.policy.terms import LossTerms, PolicyBatch

EPSILON = 1e-8
"""Added to 1 - p before the logarithm, so that a token of probability 1 gives a finite divergence. verl's value."""


def dppo_tv(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-min(r, clipRatioC) A log pi, and 0 if p - p_old > clipRatioHigh for A > 0, or < -clipRatioLow otherwise.

    p is the token's probability; |p - p_old| is the total variation of "this token or another one". Nothing flows
    through the weight min(r, clipRatioC).

    Use it if clip drops mostly rare tokens, whose ratios are large though the distribution hardly changed.

    Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning: https://arxiv.org/abs/2602.04879
    """
    now, old = _probabilities(batch)
    far = torch.where(batch.advantages > 0, now - old > settings.clip_ratio_high, old - now > settings.clip_ratio_low)
    return _masked(batch, far, settings)


def dppo_kl(batch: PolicyBatch, settings: ResolvedAlgorithm) -> LossTerms:
    """-min(r, clipRatioC) A log pi, and 0 if D > clipRatioHigh, p > p_old for A > 0, or D > clipRatioLow, p < p_old.

    D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)), the KL divergence of "this token or another one".

    Use it as dppo_tv; its bound is tighter for probabilities near 0 and 1.

    Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning: https://arxiv.org/abs/2602.04879
    """
    now, old = _probabilities(batch)
    others = torch.log((1 - old + EPSILON) / (1 - now + EPSILON))
    divergence = (1 - old) * others - old * batch.log_ratio().detach()
    upwards = (divergence > settings.clip_ratio_high) & (now > old)
    downwards = (divergence > settings.clip_ratio_low) & (now < old)
    return _masked(batch, torch.where(batch.advantages > 0, upwards, downwards), settings)


def _probabilities(batch: PolicyBatch) -> tuple[Tensor, Tensor]:
    """p and p_old of each token, without gradient."""
    now = batch.log_probs.detach()
    return now.exp(), (now if batch.old_log_probs is None else batch.old_log_probs).exp()


def _masked(batch: PolicyBatch, far: Tensor, settings: ResolvedAlgorithm) -> LossTerms:
    weight = batch.ratio().detach().clamp(max=settings.clip_ratio_c)
    return LossTerms(torch.where(far, 0, -weight * batch.advantages * batch.log_probs), far & (batch.advantages != 0))
