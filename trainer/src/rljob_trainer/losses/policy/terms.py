"""What a policy loss takes and gives, and the probability ratio that all of them share."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_api.resolve import ResolvedAlgorithm

MAX_LOG_RATIO = 20.0
"""Bound of the log of a probability ratio before exp. Beyond 88.7 exp overflows in float32 and one token turns the
whole step to NaN; at 20 the ratio is 5e8, which no healthy step comes near. Past the bound a token has no gradient.
A ratio that goes to 0 needs no bound."""


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """T tokens in the loss, flat: those of trajectory 0, then of trajectory 1, ... All tensors are [T], float32.

    log_probs: of the sampled tokens under the policy that is trained; the only one with a gradient.
    advantages: of the tokens.
    old_log_probs: under the policy at the start of the step; None if that is the policy that is trained.
    engine_log_probs: of the engine that sampled the tokens.
    reference_log_probs: of the reference; None without one.
    values: of the critic at the start of the step; None without one.
    mask: [T], bool, the tokens that count; None: all. Whoever aggregates leaves the others out.
    """

    log_probs: Tensor
    advantages: Tensor
    old_log_probs: Tensor | None = None
    engine_log_probs: Tensor | None = None
    reference_log_probs: Tensor | None = None
    values: Tensor | None = None
    mask: Tensor | None = None

    def ratio(self) -> Tensor:
        """pi(token) / pi_old(token), [T]."""
        old = self.log_probs.detach() if self.old_log_probs is None else self.old_log_probs
        return torch.exp((self.log_probs - old).clamp(max=MAX_LOG_RATIO))


@dataclass(frozen=True, slots=True)
class LossTerms:
    """One loss, not yet aggregated.

    per_token: [T], to be minimised, with the gradient of log_probs.
    clipped: [T], bool, tokens whose gradient the clipping has set to 0.
    """

    per_token: Tensor
    clipped: Tensor


PolicyLoss = Callable[[PolicyBatch, ResolvedAlgorithm], LossTerms]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> LossTerms:
    """-min(r A, clip(r, low, high) A): the smaller promise of the two, so that leaving the range never pays."""
    per_token = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    return LossTerms(per_token, clipped)
