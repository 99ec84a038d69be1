"""countdown: an arithmetic expression of given numbers, each used once, that has a given value."""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import simpleeval
from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.protocol import Call

_EXPRESSION = re.compile(r"[0-9 ()+*/-]+")  # of one line: of several, only the first would be evaluated
_NUMBER = re.compile(r"\d+")
_LONGEST = 200
"""Characters; a longer response is no answer, and costs nothing."""


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """1 for an expression of the target's value, format_score for another one of the right numbers, 0 else.

    The ground truth is {"target": 24, "numbers": [3, 5, 9]}. The response is the expression alone, with + - * / and
    parentheses; what follows an equals sign ("3*5+9 = 24") does not count.
    """

    format_score: float = 0.0

    def __call__(self, call: Call) -> float:
        target, numbers = _truth(call.ground_truth)
        expression = call.solution_str.split("=")[0].strip()
        if len(expression) > _LONGEST or not _EXPRESSION.fullmatch(expression):
            return 0.0
        if sorted(int(number) for number in _NUMBER.findall(expression)) != sorted(numbers):
            return 0.0
        value = _value(expression)
        if value is None:
            return 0.0
        return 1.0 if abs(value - target) < 1e-6 else self.format_score


def _truth(truth: Any) -> tuple[float, list[int]]:
    """Numbers may be written as text, as some data sets have them."""
    try:
        target, numbers = float(truth["target"]), [Decimal(str(number)) for number in _list(truth["numbers"])]
        whole = [int(number) for number in numbers]
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f'ground_truth {truth!r} is not {{"target": NUMBER, "numbers": [NUMBER, ...]}}') from error
    if whole != numbers:
        raise ValueError(f"ground_truth has numbers that are not whole: {truth['numbers']}")
    if not math.isfinite(target):
        raise ValueError(f"ground_truth has a target that is no finite number: {truth['target']}")
    return target, whole


def _list(numbers: Any) -> list[Any]:
    if isinstance(numbers, str | Mapping):
        raise TypeError("no list")
    return list(numbers)


def _value(expression: str) -> float | None:
    """None for what is no expression or has no value; `**` and `//` are refused, for their cost and for their sense."""
    if "**" in expression or "//" in expression:
        return None
    try:
        return float(simpleeval.simple_eval(expression))
    except (simpleeval.InvalidExpression, SyntaxError, ArithmeticError, TypeError, ValueError, RecursionError):
        return None
