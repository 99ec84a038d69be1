"""Kubernetes' quantities, as every amount of CPU, memory and storage is written."""

import re
from fractions import Fraction

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"

_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_quantity(text: str) -> Fraction:
    """The exact number that a quantity is: "1.5Gi" is 1610612736, "500m" is 1/2.

    Raises ValueError where `text` is none that the API accepts.
    """
    if not re.fullmatch(QUANTITY_PATTERN, text):
        raise ValueError(f"{text!r} is no quantity; write 500m, 8 or 64Gi")
    number, unit = re.findall(r"([0-9.]+)(.*)", text)[0]
    if unit == "m":
        return Fraction(number) / 1000
    base = 1024 if unit.endswith("i") else 1000
    return Fraction(number) * base ** _POWERS[unit.removesuffix("i")]
