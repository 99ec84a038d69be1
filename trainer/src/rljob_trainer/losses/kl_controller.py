"""The coefficient of the KL penalty over time. Light: the driver imports it."""

import math
from collections.abc import Mapping

from rljob_api.resolve import ResolvedKl
from rljob_trainer.errors import JobError
from rljob_trainer.progress import names

MAX_RELATIVE_ERROR = 0.2
"""Bound of the relative error in one update, so that a spike does not change the coefficient by much."""


class KlController:
    """Fixed, or proportional control in log space towards a target divergence.

    Adaptive, after each step: e = clip(KL / target - 1, -0.2, 0.2); coefficient *= 1 + e min(samples / horizon, 1),
    the bound keeps the coefficient positive.

    Ziegler et al. 2019, section 2.2: https://arxiv.org/abs/1909.08593
    """

    def __init__(self, settings: ResolvedKl) -> None:
        self._settings = settings
        self.coefficient = settings.coefficient

    @property
    def acts_in_loss(self) -> bool:
        return self._settings.placement == "loss"

    @property
    def adapts(self) -> bool:
        return self._settings.controller == "adaptive"

    def metrics(self) -> dict[str, float]:
        """Of the step that begins with this coefficient."""
        return {names.ACTOR_KL_COEFFICIENT: self.coefficient} if self.adapts else {}

    def update(self, mean_kl_per_response: float, samples: int) -> None:
        """Adapt the coefficient after one step.

        mean_kl_per_response: divergence summed over a response's tokens, in nats, mean over the step.
        samples: responses in the step.
        Raises JobError if the divergence is not finite.
        """
        if not math.isfinite(mean_kl_per_response):
            raise JobError(
                f"the KL divergence from the reference is {mean_kl_per_response}: the policy has diverged; "
                "lower the learning rate and resume",
                field="spec.actor.learningRate",
            )
        if self.adapts:
            error = mean_kl_per_response / self._settings.target - 1
            bounded = min(max(error, -MAX_RELATIVE_ERROR), MAX_RELATIVE_ERROR)
            self.coefficient *= 1 + bounded * min(samples / self._settings.horizon, 1.0)

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore an adaptive coefficient; a fixed one comes from the spec."""
        if self.adapts:
            self.coefficient = state["coefficient"]
