r"""Numbers in text: which digits are a number, which are a part of something else, and what "-" before them means.

"$1,234.50", "1.5e3", "1 000", "0,5"   1234.5, 1500, 1000, 0.5
"x = -18"                              -18      a sign
"10 - 18", "3-4", "- 18 eggs"          18, 4    a subtraction, a range and a bullet are no sign
"3/4", "1 1/2", "\frac{3}{4}"           fractions: they equal 6/8 and 0.75 if the truth is a fraction, too
"2^10", "12:30", "\sqrt{2}", "2/-3"     None     no part of them is a number
"18 m^2", "18 km/h"                    18       digits of a unit are skipped
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

_DASHES = str.maketrans({"−": "-", "–": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " "})
_CURRENCY = r"(?:\\?[$€£¥₹]\s*)?"
_SEPARATOR = r"(?:\{,\}|\\[,;:! ]|[,'_ ])"
_GROUPS = rf"\d{{1,3}}(?:{_SEPARATOR}\d{{2,3}}){{0,8}}{_SEPARATOR}\d{{3}}(?!\d)(?:\.\d+)?"
_ARGUMENT = r"\s*(?:\{[^{}]*\}|\d)"
_OPERATOR = r"\s*(?:\^|\*\*(?=\s*[\d(])|/(?!\s*[A-Za-z]{2}))\s*"
_REST = rf"(?: {_OPERATOR} -? (?: \{{[^{{}}]*\}} | \([^()]*\) | [\w\\]+ ) | [.,:]?\d+ )"
_TOKEN = re.compile(
    rf"""
      (?<![\w.,/^:]) (?P<sign>[-+]\s*)? {_CURRENCY} (?P<minus>-)? (?>
          (?P<time> \d+ (?: :\d+ )+ )
        | (?P<fraction> \\[dtc]?frac {_ARGUMENT} {_ARGUMENT} | (?:\d+\s+)? \d+ \s*/\s* \d+ )
        | (?P<digits> {_GROUPS} | \d+ (?:[.,]\d+)? | \.\d+ )
          (?: e(?P<e>[-+]?\d+) | \s*(?:\\times|\\cdot|[×x*])\s*10\s*\^\s*\{{?(?P<power>[-+]?\d+)\}}? )?
      ) (?P<part> {_REST}+ )?
    | (?P<root> (?: \\sqrt | √ ) {_ARGUMENT} )
    | (?<![A-Za-z0-9]) [A-Za-z][A-Za-z0-9]*+ \s* [\^_] \s* (?: \{{[^{{}}]*\}} | -?\w+ )
    """,
    re.VERBOSE | re.IGNORECASE,
)
_ITEM = re.compile(r"(?:^|\n)[ \t]*\d+[.)][ \t]+\Z")
_WORK = re.compile(r"\s*(?:[-+*×÷]|\\(?:times|cdot|div))\s*[\d($\\.]")
"""What follows a number that is the beginning of an expression, as in "10 - 18"."""
_MARKUP = re.compile(r"(?:\\[a-zA-Z]+|[\s*_`~$#({\[|])*")
_MARK = "####"
_EXPONENT = 400
"""Larger powers of ten count as this one: a response may not cost memory."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written. fraction: it is written as one, such as 3/4."""

    value: Fraction
    fraction: bool = False

    def equals(self, truth: "Number") -> bool:
        """Whether this answer is the truth; a fraction that is still to be worked out is no plain number."""
        return self.value == truth.value and (truth.fraction or not self.fraction)


def last_number(text: str) -> Number | None:
    """The last number of the text."""
    *_, last = (None, *(number for _, number in _numbers(text)))
    return last


def marked_number(text: str) -> Number | None:
    """The number after the last "####" of the text: "#### 18 eggs", "#### x = 18", "#### **18**"."""
    _, mark, tail = text.rpartition(_MARK)
    line = tail.strip().partition("\n")[0]
    if not mark or not line:
        return None
    line = f"{mark} {line.rpartition('=')[2].strip()}"  # the mark before it makes "- 18" a sign
    found, number = next(_numbers(line), (None, None))
    if found is None or not _MARKUP.fullmatch(line, 0, found.start()) or _WORK.match(line, found.end()):
        return None
    return number


def _numbers(text: str) -> Iterator[tuple[re.Match[str], Number | None]]:
    """Place and value of what is written with digits; None for what is no number as a whole."""
    text = text.translate(_DASHES)
    for found in _TOKEN.finditer(text):
        if found["part"] is not None or found["time"] or found["root"]:
            yield found, None
        elif found["fraction"]:
            yield found, _fraction(found["fraction"], _sign(found, text))
        elif found["digits"]:
            yield found, Number(_sign(found, text) * _decimal(found))


def _sign(found: re.Match[str], text: str) -> int:
    """-1 if the minus before the digits is a sign."""
    if found["minus"]:
        return -1
    sign, before = found["sign"] or "", text[max(0, found.start() - 80) : found.start()]
    if not sign.startswith("-"):
        return 1
    if sign == "-":  # "Answer: -18", but not "10 -18"
        return 1 if re.search(r"[\d)\]}%][ \t]*\Z", before) and not _ITEM.search(before) else -1
    return -1 if re.search(r"[=(:\[{#][ \t]*\Z", before) else 1  # "x = - 18", but neither "10 - 18" nor a bullet


def _decimal(found: re.Match[str]) -> Fraction:
    digits = found["digits"]
    if re.fullmatch(_GROUPS, digits):
        digits = re.sub(r"[^\d.]", "", digits)
    exponent = int((found["e"] or found["power"] or "0")[:6])
    return Fraction(Decimal(digits.replace(",", "."))) * Fraction(10) ** max(-_EXPONENT, min(_EXPONENT, exponent))


def _fraction(text: str, sign: int) -> Number | None:
    parts = [Fraction(Decimal(part)) for part in re.findall(r"-?\d+", text)]
    whole = parts.pop(0) if len(parts) == 3 else Fraction()
    if len(parts) != 2 or not parts[1] or re.search(r"[A-Za-z.,]", text.removeprefix("\\").replace("frac", "")[1:]):
        return None
    return Number(sign * (whole + parts[0] / parts[1]), fraction=True)
