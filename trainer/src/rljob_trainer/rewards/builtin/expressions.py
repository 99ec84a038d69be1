r"""Expressions in \boxed{}: found in a text, written as math-verify reads them, and compared by it."""

import re
import time
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

_SECONDS = 10.0
"""math-verify gives each comparison 5 s. No further one begins after this time, so a call ends before its deadline."""

_LONGEST = 500
"""Characters; a longer expression is compared as text only."""

_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)(?![a-zA-Z])\s*)(?P<brace>\{?)|\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"[^\n$]{0,200}?(?=\s*(?:\$|\\[)\]]))|\S*")
_BETWEEN = re.compile(r"[\s$,;\\()\[\]]{0,9}(?:and|or)?[\s$,;\\()\[\]]{0,9}")


def boxed(text: str) -> list[str]:
    r"""The contents that may be the answer: of the last closed \boxed{}, and of those that it continues as a list.

    "\boxed{2} and \boxed{3}" has the answers "3" and "2,3". An open "\boxed{" at the end hides none before it.
    """
    boxes = [(start, end, inner.strip()) for start, end, inner in _boxes(text) if inner.strip()]
    if not boxes:
        return []
    last = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if box[1] <= last[0][0] and _BETWEEN.fullmatch(text, box[1], last[0][0]):
            last.insert(0, box)
        elif box[1] <= last[0][0]:
            break
    return [boxes[-1][2], ",".join(box[2] for box in last)][: len(last)]


def _boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Start, end and content of each closed box, also of one within another; "\boxed 5" is one as well."""
    boxes, opened = [], []
    for token in _TOKEN.finditer(text):
        if token["box"] and not token["brace"]:
            bare = _BARE.match(text, token.end())
            boxes += [(token.start(), bare.end(), bare[0].rstrip(".,;"))] if bare else []
        elif token["box"] or token[0] == "{":
            opened.append(token)
        elif token[0] == "}" and opened and (begin := opened.pop())["box"]:
            boxes.append((begin.start(), token.end(), text[begin.end() : token.start()]))
    return sorted(boxes)


# ---- how people write what math-verify reads

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "∞": r"\infty ", "×": r"\times ", "·": r"\cdot ", "÷": "/", "°": r"^\circ ",
     "\u00a0": " ", "\u2009": " ", "\u202f": " ", "¼": r"\frac{1}{4}", "½": r"\frac{1}{2}", "¾": r"\frac{3}{4}",
     "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}"}
    | {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}  # full width
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SHORT = (
    r"(?:mm|cm|dm|km|mg|kg|lbs?|oz|ft|in|yd|mi|m[lL]|cl|hrs?|min|sec|ms|mph|kph|am|pm|[kMGT]B|k?Hz|MHz|GHz|kWh?|USD|EUR|GBP"
    r"|INR|CAD|AUD|per|of|out|day|men|cup|box|egg|pie|way|all)(?![A-Za-z])"
)
_UNIT = rf"(?:{_SHORT}|[A-Za-z]{{4,}}|the|to|a)"
"""A word that is no product of variables."""
_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)"
_WRITTEN: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+"), lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}"),
    (re.compile(r"^\s*(?:\\\[|\\\(|\$+)(.*?)(?:\\\]|\\\)|\$+)\s*$", re.DOTALL), r"\1"),  # $5$
    (re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]))"), lambda found: rf"\sqrt{{{found[1] or found[2]}}}"),
    (re.compile(r"^\s*\\(?:text[a-z]*|math(?:rm|bf|it|sf|tt)|mbox)\s*\{([^{}]*)\}\s*$"), r"\1"),  # \text{5 dollars}
    (re.compile(r"^\s*(?:\\\$|[$€£¥₹]|(?:USD|EUR|GBP|INR)\b)\s*(?=[-\d.])"), ""),  # €5
    (re.compile(r"(?<=\d)\s*(?:\\\$|[$€£¥₹])\s*$"), ""),  # 5 €
    (re.compile(r"(?<=\d)(?:\\[,;:! ]|~|_|\{,\}| )(?=\d{3}(?!\d))"), ""),  # 10\,000
    (re.compile(r"(?<![\d/.])(\d+)\s+(\d+)/(\d+)(?!\d)"), r"\1\\frac{\2}{\3}"),  # 1 1/2
    (re.compile(rf"^\s*({_NUMBER})[eE]([-+]?\d+)\s*$"), r"\1\\times 10^{\2}"),  # 1.5e3
    (re.compile(r"(\d*)\.(\d*)\\(?:overline|bar|dot)\s*\{?(\d+)\}?"), lambda found: _repeating(*found.groups())),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])"), r"\\pi"),
    (re.compile(r"(?<=[\w})%])\s*[.,;]\s*$"), ""),  # 5.
    (
        re.compile(
            rf"^((?:[^A-Za-z\\]|\\[dtc]?frac)*[\d}}%])(?:\s*{_SHORT}|\s+(?!sqrt|sinh|cosh|tanh)[A-Za-z]{{4,}})"
            rf"(?:[ .-]+{_UNIT}|\s*/\s*(?:{_UNIT}|[a-z]))*\.?(?:\s*\^\s*\{{?-?\d\}}?)?$"
        ),
        r"\1",
    ),
]
"""Rewrites, in order. The last one removes units after a number: "3/4 cup", "20 cm^2"."""


def readable(expression: str) -> str:
    """The expression as math-verify reads it."""
    if len(expression) > _LONGEST:
        return expression.strip()
    text = "".join(str(unicodedata.digit(c)) if c.isdecimal() else c for c in expression.translate(_SIGNS))
    for pattern, replacement in _WRITTEN:
        text = pattern.sub(replacement, text)
    return text.strip()


def _repeating(whole: str, fixed: str, period: str) -> str:
    r"""0.1\overline{6} is (16 - 1) / 90."""
    numerator = int(whole + fixed + period) - int(whole + fixed or "0")
    return rf"\frac{{{numerator}}}{{{(10 ** len(period) - 1) * 10 ** len(fixed)}}}"


# ---- comparison

_IMAGINARY = re.compile(r"(?<![\\a-zA-Z_])i(?![a-zA-Z])")


def equal(truths: list[str], found: list[str]) -> bool:
    """Whether an expression of `found` equals one of `truths` as mathematics, or as text."""
    end = time.monotonic() + _SECONDS
    pairs = [(readable(truth), readable(answer)) for truth in truths if truth.strip() for answer in found]
    return any(truth == answer for truth, answer in pairs) or any(
        _equal(truth, answer) for truth, answer in pairs if time.monotonic() < end
    )


def _equal(truth: str, answer: str) -> bool:
    if verify(_parsed(truth), _parsed(answer)):
        return True
    # math-verify takes i as a variable
    as_unit = [_IMAGINARY.sub(r"{\\sqrt{-1}}", each) for each in (truth, answer)]
    return as_unit != [truth, answer] and bool(verify(*map(_parsed, as_unit)))


@lru_cache(maxsize=64)  # a group has one truth
def _parsed(expression: str) -> list[Any]:
    parsed: list[Any] = parse(rf"\boxed{{{expression}}}") if len(expression) <= _LONGEST else []
    return parsed
