"""Whether engines and trainer still compute the same: a warning for a step that differs, the end after several."""

from dataclasses import dataclass

import structlog

from rljob_trainer.errors import EngineMismatch
from rljob_trainer.loop.metrics import Metrics
from rljob_trainer.progress import names
from rljob_trainer.weights.probe import REMEDY

log = structlog.get_logger()

STEPS = 3
"""Steps in a row that differ: an update that is damaged on its way costs one, and the next repairs it."""


@dataclass(slots=True)
class Agreement:
    """tolerance: of the mean difference, in nats. differing: steps in a row until now."""

    tolerance: float
    differing: int = 0

    def check(self, step: int, metrics: Metrics) -> None:
        """Judge a step by its own tokens; by the probe if the trainer's present version sampled none of them.

        Raises EngineMismatch after STEPS steps in a row.
        """
        difference = metrics.get(names.ROLLOUT_LOG_PROB_DIFF_MEAN, metrics.get(names.SYNC_PROBE_MEAN))
        if difference is None:  # neither sampled nor synced, as in a replay
            return
        self.differing = 0 if difference <= self.tolerance else self.differing + 1  # NaN is above
        if self.differing:
            log.warning("engine_differs", step=step, difference=difference, tolerance=self.tolerance)
        if self.differing >= STEPS:
            raise EngineMismatch(
                f"log-probabilities of engine and trainer differ by {difference:.4g} nats on average in step {step},"
                f" and by more than {self.tolerance:g} in {STEPS} steps in a row; {REMEDY}",
                field="spec.rollout.engine",
            )
