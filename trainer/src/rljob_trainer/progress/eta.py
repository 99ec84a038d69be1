"""Estimate of a run's remaining time."""

from collections import deque
from collections.abc import Mapping
from statistics import median_low

from rljob_trainer.progress import names

WINDOW = 20
"""Number of last steps in the median: enough to ignore a slow step, few enough to follow longer responses."""


class StepTimes:
    """Step times of one stage, without its start.

    The usual part of a step (without validation and checkpoint) is the median of the last WINDOW steps, so that the
    slow first step does not count. The occasional part is the mean over all steps.
    """

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=WINDOW)
        self._occasional = 0.0
        self._steps = 0

    def add(self, metrics: Mapping[str, float]) -> None:
        occasional = sum(metrics.get(name, 0.0) for name in names.OCCASIONAL_TIMES)
        once = metrics.get(names.TIME_START, 0.0)
        self._usual.append(max(0.0, metrics[names.TIME_STEP] - occasional - once))
        self._occasional += occasional
        self._steps += 1

    def remaining(self, steps: int) -> float | None:
        """Seconds that `steps` more steps take; None before the first step."""
        if not self._steps:
            return None
        return steps * (median_low(self._usual) + self._occasional / self._steps)
