"""Durations as the API writes them."""

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


def seconds(duration: str) -> float:
    """Seconds of a Go duration that the API has accepted: seconds("1h30m") == 5400.0."""
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(duration))
