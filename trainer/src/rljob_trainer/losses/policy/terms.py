"""Inputs and outputs of a policy loss, the probability ratio, and sums over whole sequences."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_api.resolve import ResolvedAlgorithm

MAX_LOG_RATIO = 20.0
"""Bound of the log of a probability ratio before exp. Beyond 88.7 exp overflows in float32 and one token makes the
whole step NaN; at 20 the ratio is 5e8, far above any useful step. Beyond the bound a token has no gradient."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """P pairs of a preferred and a rejected response, side by side in a batch.

    lengths: [P], int64, tokens of each pair. trajectories: [P], of each pair: two, or more of episodes in parts.
    """

    lengths: Tensor
    trajectories: Tensor

    def sums(self, values: Tensor) -> Tensor:
        """[T] -> [P]: the sum over each pair's tokens, in a fixed order."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths, initial=0, unsafe=True)

    def spread(self, losses: Tensor, tokens: int) -> Tensor:
        """[P] -> [T]: every token gets its pair's loss; a pair of more trajectories than two counts no more.

        tokens: T, which the host knows: it does not wait for the device to add lengths.
        """
        weighted = losses * (2 / self.trajectories)
        return weighted.repeat_interleave(self.lengths, output_size=tokens)


@dataclass(frozen=True, slots=True)
class PolicyBatch:
    """T tokens in the loss, flat: trajectory 0, then trajectory 1, ... Tensors are [T], float32, unless it says so.

    log_probs: of the sampled tokens under the trained policy; the only tensor with a gradient.
    old_log_probs: under the policy at the start of the step; None if equal to the trained policy.
    engine_log_probs: from the engine that sampled the tokens.
    reference_log_probs: from the reference; None without one.
    mask: bool, the tokens that count; None: all. `token_weights` excludes the others.
    lengths: [n], int64, tokens of each trajectory; None: all tokens are of one. A micro-batch holds whole trajectories,
        so what a loss computes over a sequence does not depend on the split into micro-batches and ranks.
    weights: importance weights of each token's loss; None: all are 1.
    chosen: bool, the tokens that `losses.covariance` chose in the whole minibatch; None: none.
    pairs: of a loss that compares responses; it has no mask. A micro-batch holds whole pairs. None for other losses.
    """

    log_probs: Tensor
    advantages: Tensor
    old_log_probs: Tensor | None = None
    engine_log_probs: Tensor | None = None
    reference_log_probs: Tensor | None = None
    mask: Tensor | None = None
    lengths: Tensor | None = None
    weights: Tensor | None = None
    chosen: Tensor | None = None
    pairs: Pairs | None = None

    def log_ratio(self) -> Tensor:
        """log pi(token) - log pi_old(token), [T]."""
        old = self.log_probs.detach() if self.old_log_probs is None else self.old_log_probs
        return self.log_probs - old

    def ratio(self) -> Tensor:
        """pi(token) / pi_old(token), [T]."""
        return bounded_exp(self.log_ratio())

    def sequence_sums(self, values: Tensor) -> Tensor:
        """[T] -> [T]: every token gets the sum over those tokens of its trajectory that count.

        segment_reduce adds in a fixed order, also on a GPU, unlike index_add.
        """
        counting = values if self.mask is None else torch.where(self.mask, values, 0)
        if self.lengths is None:
            return counting.sum().expand_as(values)
        sums = torch.segment_reduce(counting, "sum", lengths=self.lengths, initial=0, unsafe=True)
        return sums.repeat_interleave(self.lengths, output_size=values.numel())

    def sequence_means(self, values: Tensor) -> Tensor:
        """[T] -> [T]: every token gets the mean over those tokens of its trajectory that count; 0 if none does."""
        counts = self.sequence_sums(torch.ones_like(values))
        return self.sequence_sums(values) / counts.clamp(min=1)


@dataclass(frozen=True, slots=True)
class LossTerms:
    """One loss before aggregation.

    per_token: [T], to be minimised, with the gradient of log_probs.
    clipped: [T], bool, tokens whose gradient a bound made 0 or smaller.
    preference: [6], float64, losses.preference.PreferenceSums; None without pairs.
    """

    per_token: Tensor
    clipped: Tensor
    preference: Tensor | None = None


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio) up to MAX_LOG_RATIO, and constant above."""
    return torch.exp(log_ratio.clamp(max=MAX_LOG_RATIO))


PolicyLoss = Callable[[PolicyBatch, ResolvedAlgorithm], LossTerms]


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> LossTerms:
    """-min(r A, clip(r, low, high) A): leaving the range brings no gain."""
    per_token = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    return LossTerms(per_token, clipped)
