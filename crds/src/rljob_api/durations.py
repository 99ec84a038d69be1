"""Go durations, the format of every time span of the API."""

import re

DURATION_PATTERN = r"^([0-9]{1,5}(\.[0-9]{1,3})?(ms|s|m|h))+$"
"""Five digits per part: within the 32 characters of a field, no value overflows Go's 64-bit nanoseconds."""

_PART = re.compile(r"([0-9.]+)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of a Go duration: "1h30m" is 5400.0, "500ms" is 0.5.

    Raises ValueError if the API does not accept `text`.
    """
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration: write 90s, 1h30m or 500ms, for example")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
