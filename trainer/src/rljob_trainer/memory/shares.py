"""Values of `rollout.gpuMemoryUtilization`, in steps of 0.05 between its bounds. Pure."""

import math

LEAST, MOST = 0.05, 0.95
_STEPS = 20


def below(share: float) -> float:
    """The largest value that is not above `share`; 0 if there is none."""
    value = math.floor(share * _STEPS + 1e-9) / _STEPS
    return min(value, MOST) if value >= LEAST else 0.0


def above(share: float) -> float:
    """The smallest value that is not below `share`; 0 if there is none."""
    value = math.ceil(share * _STEPS - 1e-9) / _STEPS
    return max(value, LEAST) if value <= MOST else 0.0


def lowered(present: float, share: float) -> str:
    return f"lower it from {present:g} to {share:g}"


def raised(present: float, share: float) -> str:
    return f"raise it from {present:g} to {share:g}"
