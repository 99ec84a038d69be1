"""Numbers, durations and curves as text."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """Seconds as 0:45, 1:02:03 or 2d 03:15."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """`values` as at most `width` bars: sparkline([0, 0, 1, 1, 2, 2], 3) is "▁▅█"."""
    means = _shrink(values, width)
    if not means:
        return ""
    low, span = min(means), max(means) - min(means)
    if span == 0:
        return _BARS[0] * len(means)
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in means)


def _shrink(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [round(index * len(values) / width) for index in range(width + 1)]
    return [fmean(values[start:end]) for start, end in pairwise(edges)]
