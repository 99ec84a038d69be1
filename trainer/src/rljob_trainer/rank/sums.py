"""What the passes of a step add up on the device. Nothing here reads a number back before RunningSums.read."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rljob_trainer.losses.covariance import CovarianceSums
from rljob_trainer.losses.preference import PREFERENCE, PreferenceSums
from rljob_trainer.rank.results import LARGEST_NORM, StepSums

_SUMS = 9
"""Sums over tokens, before those over pairs."""


@dataclass(frozen=True, slots=True)
class PassTerms:
    """What one pass adds to the sums; [T] each, of the tokens in the loss.

    kl: from the reference, if it acts in the loss. clipped: bool. drift: the KL estimate from the policy at the start
    of the step. advantages, log_probs: as in the loss. The last four are None in a supervised step. The critic's passes
    have clipped alone.
    reverse_kl: to the teacher, with teacher.topK.
    preference: [6], sums over the pairs of a preference loss.
    """

    entropies: Tensor | None = None
    kl: Tensor | None = None
    clipped: Tensor | None = None
    drift: Tensor | None = None
    advantages: Tensor | None = None
    log_probs: Tensor | None = None
    preference: Tensor | None = None
    reverse_kl: Tensor | None = None


@dataclass(slots=True)
class RunningSums:
    """StepSums as they grow, on the device.

    values: loss, entropy, kl, clipped, drift, advantage, log_prob, advantage x log_prob and reverse_kl, [9]
        float64; then [6] of pairs, as PreferenceSums.
    grad_norms: a scalar of each optimizer step.
    """

    values: Tensor
    tokens: int = 0
    norm_bound: float = LARGEST_NORM
    trajectories: int = 0
    minibatches: int = 0
    grad_norms: list[Tensor] = field(default_factory=list)

    @classmethod
    def on(cls, device: torch.device, norm_bound: float) -> "RunningSums":
        return cls(torch.zeros(_SUMS + len(PREFERENCE), dtype=torch.float64, device=device), norm_bound=norm_bound)

    @torch.no_grad()
    def add(
        self, tokens: int, loss: Tensor, terms: PassTerms, mask: Tensor | None = None, trajectories: int = 0
    ) -> None:
        """One pass. tokens: those that count. trajectories: those with such tokens. loss: a scalar."""
        self.values[0] += loss.sum(dtype=torch.float64)
        product = None
        if terms.advantages is not None and terms.log_probs is not None:
            product = terms.advantages * terms.log_probs
        summed = (terms.entropies, terms.kl, terms.clipped, terms.drift, terms.advantages, terms.log_probs, product)
        for index, value in enumerate((*summed, terms.reverse_kl), start=1):
            if value is not None:
                counting = value if mask is None else torch.where(mask, value, 0)
                self.values[index] += counting.sum(dtype=torch.float64)
        if terms.preference is not None:
            self.values[_SUMS:] += terms.preference
        self.tokens += tokens
        self.trajectories += trajectories

    def counted(self) -> Tensor:
        """Tokens, what was clipped and the drift until now, [3]."""
        return torch.cat([torch.full_like(self.values[:1], self.tokens), self.values[3:5]])

    def finished(self, norm: Tensor) -> None:
        """One minibatch, and the norm of its gradient."""
        self.minibatches += 1
        self.grad_norms.append(norm)

    def read(self) -> StepSums:
        """Wait for the device."""
        norms = [each.to(self.values.device, torch.float64).view(1) for each in self.grad_norms]
        loss, entropy, kl, clipped, drift, *others = torch.cat([self.values, *norms]).tolist()
        advantages, log_probs, products, reverse_kl, *others = others
        preference, grad_norms = PreferenceSums(*others[: len(PREFERENCE)]), others[len(PREFERENCE) :]
        covariance = CovarianceSums(float(self.tokens), advantages, log_probs, products)
        skipped = [norm for norm in grad_norms if not norm <= self.norm_bound]
        made = [norm for norm in grad_norms if norm <= self.norm_bound]
        return StepSums(
            loss, entropy, kl, clipped, self.tokens, made, drift, covariance, self.trajectories, self.minibatches,
            skipped, preference, reverse_kl,
        )  # fmt: skip
