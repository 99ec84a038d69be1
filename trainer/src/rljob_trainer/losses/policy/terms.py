"""Inputs and outputs of a policy loss, and the probability ratio."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_api.resolve import ResolvedAlgorithm

MAX_LOG_RATIO = 20.0
"""Bound of the log of a probability ratio before exp. Beyond 88.7 exp overflows in float32 and one token makes the
whole step NaN; at 20 the ratio is 5e8, far above any useful step. Beyond the bound a token has no gradient."""


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """T tokens in the loss, flat: trajectory 0, then trajectory 1, ... All tensors are [T], float32.

    log_probs: of the sampled tokens under the trained policy; the only tensor with a gradient.
    old_log_probs: under the policy at the start of the step; None if equal to the trained policy.
    engine_log_probs: from the engine that sampled the tokens.
    reference_log_probs: from the reference; None without one.
    values: from the critic at the start of the step; None without one.
    mask: [T], bool, the tokens that count; None: all. `token_weights` excludes the others.
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
    """One loss before aggregation.

    per_token: [T], to be minimised, with the gradient of log_probs.
    clipped: [T], bool, tokens whose gradient is 0 because of clipping.
    """

    per_token: Tensor
    clipped: Tensor


PolicyLoss = Callable[[PolicyBatch, ResolvedAlgorithm], LossTerms]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> LossTerms:
    """-min(r A, clip(r, low, high) A): leaving the range brings no gain."""
    per_token = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    return LossTerms(per_token, clipped)
