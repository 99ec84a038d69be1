"""The learning rate as a function of the step: no state to save."""

import math

from rljob_api.v1alpha1.terms import LrSchedule

_DECAY_SHARE = 10
"""wsd falls in a tenth of all steps, if the spec does not say how many. Hu et al. 2024, MiniCPM, section 4:
https://arxiv.org/abs/2404.06395"""


def learning_rate(
    step: int, peak: float, total: int, warmup: int = 0, schedule: LrSchedule = "constant", floor: float = 0.0,
    decay: int | None = None,
) -> float:  # fmt: skip
    """Learning rate of step `step`, counted from 0 within a stage of `total` steps.

    It rises linearly over `warmup` steps, then stays (constant), or falls to floor x peak at `total`: on a line, on
    half a cosine, or (wsd) on a line over the last `decay` steps.
    """
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    begin = warmup
    if schedule == "wsd":
        begin = max(warmup, total - (decay if decay is not None else max(1, total // _DECAY_SHARE)))
    done = max(0.0, (step - begin) / max(1, total - begin))
    left = (1 + math.cos(math.pi * done)) / 2 if schedule == "cosine" else 1 - done
    return peak * (floor + (1 - floor) * left)
