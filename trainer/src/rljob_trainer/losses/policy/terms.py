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
    """T tokens of responses, flat: those of response 0, then of response 1, ...

    log_probs: [T], of the sampled tokens under the policy that is trained, with gradient; float32.
    old_log_probs: [T], under the policy at the start of the step; no gradient.
    advantages: [T].
    """

    log_probs: Tensor
    old_log_probs: Tensor
    advantages: Tensor

    def ratio(self) -> Tensor:
        """pi(token) / pi_old(token), [T]."""
        return torch.exp((self.log_probs - self.old_log_probs).clamp(max=MAX_LOG_RATIO))


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
