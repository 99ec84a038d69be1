"""Bad gradients: what is too large, and how many steps in a row may have one (training.onBadGradient).

driver: bound of the norm ──> ranks: update, or skip ──> driver: norms, skipped ──> mean of the norms, steps in a row
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import structlog

from rljob_api.v1alpha1.training import OnBadGradient
from rljob_trainer.errors import JobError
from rljob_trainer.rank.results import LARGEST_NORM

log = structlog.get_logger()

RECENT = 100
"""Updates over which the mean norm forgets."""

JUDGED_AFTER = 10
"""Updates before a norm counts as a spike: the first ones of a run are no measure."""


@dataclass(slots=True)
class GradientGuard:
    """mean: exponential mean of the norms of `count` gradients that are finite and not 0; of a skipped one, the bound.
    skips: steps in a row with a skipped update.
    model: whose gradients they are: the block of the spec with its learning rate.
    """

    settings: OnBadGradient
    mean: float = 0.0
    count: int = 0
    skips: int = 0
    model: Literal["actor", "critic"] = "actor"

    @property
    def bound(self) -> float:
        """The largest norm of the next step's gradients, which ranks compare in float32.

        LARGEST_NORM if none is too large.
        """
        factor = self.settings.spike_factor
        if factor is None or self.count < JUDGED_AFTER:
            return LARGEST_NORM
        return float(np.float32(factor * self.mean))

    def observe(self, norms: Sequence[float], skipped: Sequence[float]) -> None:
        """One step. norms: of the gradients that updated the policy. skipped: of those that a rank left out."""
        bound = self.bound
        for norm in (*norms, *(min(each, bound) for each in skipped if math.isfinite(each))):
            if norm > 0:  # 0: no response was better than another
                self.count += 1
                self.mean += (norm - self.mean) / min(self.count, RECENT)
        self.skips = self.skips + 1 if skipped else 0

    def check(self, step: int, skipped: Sequence[float], kept: bool) -> None:
        """Warn of a step that skipped an update. Raises JobError after too many such steps in a row.

        kept: whether the step's samples are in bad_batches/. A driver that takes over a finished update has none.
        """
        if not skipped:
            return
        norms = ", ".join(f"{norm:.3g}" for norm in skipped)
        log.warning(
            "updates_skipped", model=self.model, step=step, norms=norms, steps_in_a_row=self.skips, usual_norm=self.mean
        )
        samples = "its samples are in bad_batches/ of the run" if kept else "the driver that had its samples was lost"
        if self.skips > self.settings.max_skips:
            raise JobError(
                f"step {step} is the last of {self.skips} in a row whose gradients were not finite or too large"
                f" (norms {norms}; usual {self.mean:.3g}): {samples}; lower the learning rate, or"
                " raise training.onBadGradient.maxSkips, and resume",
                field=f"spec.{self.model}.learningRate",
            )

    def forget(self) -> None:
        """Norms of supervised steps are no measure for those of reinforcement learning."""
        self.mean, self.count, self.skips = 0.0, 0, 0

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "count": self.count, "skips": self.skips}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.mean, self.count, self.skips = state["mean"], int(state["count"]), int(state["skips"])
