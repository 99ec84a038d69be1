"""How Kubernetes reads a YAML scalar without quotes.

kubectl converts YAML 1.1 to JSON (sigs.k8s.io/yaml): yes, on and y are booleans, 1e-6 and
1_000 are numbers, 010 is eight, 8.0 is the integer 8, and 1:30 and dates are text. PyYAML differs in most of these.
"""

import math
import re
from typing import Any

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], math.nan),
    **dict.fromkeys([".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], math.inf),
    **dict.fromkeys(["-.inf", "-.Inf", "-.INF"], -math.inf),
}
_BASES = {
    16: re.compile(r"[-+]?0[xX][0-9a-fA-F]+"),
    8: re.compile(r"[-+]?0[oO]?[0-7]+"),
    2: re.compile(r"[-+]?0[bB][01]+"),
    10: re.compile(r"[-+]?(0|[1-9][0-9]*)"),
}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def plain_scalar(text: str) -> Any:
    """The JSON value of a scalar without quotes, as sigs.k8s.io/yaml reads it."""
    if text in _WORDS:
        return _WORDS[text]
    digits = text.replace("_", "") if text[0] in "+-0123456789" else text
    for base, pattern in _BASES.items():
        if pattern.fullmatch(digits):
            return _json_number(int(re.sub("0[xXoObB]?(?=.)", "", digits, count=1) if base != 10 else digits, base))
    number = float(digits) if _FLOAT.fullmatch(digits) else math.inf
    return _json_number(number) if math.isfinite(number) else text


def _json_number(number: float) -> float:
    """Whole floats are integers in JSON; integers beyond 64 bits are floats in Kubernetes."""
    whole = int(number) if isinstance(number, int) or number.is_integer() else None
    if whole is None:
        return number
    return whole if -(2**63) <= whole < 2**63 else float(number)
