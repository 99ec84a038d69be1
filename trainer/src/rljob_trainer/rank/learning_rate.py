"""The learning rate as a function of the step: no state to save."""

import math
from typing import Literal


def learning_rate(
    step: int, peak: float, total: int, warmup: int = 0, schedule: Literal["constant", "linear", "cosine"] = "constant"
) -> float:
    """Learning rate of step `step`, counted from 0 within a stage of `total` steps.

    It rises linearly over `warmup` steps, then stays (constant), or falls to 0 at `total` on a line or half a cosine.
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    done = (step - warmup) / max(1, total - warmup)
    return peak * (1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
