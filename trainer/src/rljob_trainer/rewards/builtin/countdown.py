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

_EXPRESSION = re.compile(r"[0-9 ()+*/-]+")  # one line: simpleeval evaluates only the first of several
_NUMBER = re.compile(r"\d+")
_LONGEST = 200
"""Characters; a longer response scores 0 and is not evaluated."""


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """1 for an expression with the target's value, format_score for another with the right numbers, else 0.

    The ground truth is {"target": 24, "numbers": [3, 5, 9]}. The response is the expression alone, with + - * / and
    parentheses; text after an equals sign ("3*5+9 = 24") is ignored.
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
    """Target and numbers; some data sets write the numbers as text."""
    try:
        target, numbers = float(truth["target"]), [Decimal(str(number)) for number in _list(truth["numbers"])]
        whole = [int(number) for number in numbers]
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f'ground_truth {truth!r} is not {{"target": NUMBER, "numbers": [NUMBER, ...]}}') from error
    if whole != numbers:
        raise ValueError(f"ground_truth has numbers that are not whole: {truth['numbers']}")
    if not math.isfinite(target):
        raise ValueError(f"ground_truth has a target that is not finite: {truth['target']}")
    return target, whole


def _list(numbers: Any) -> list[Any]:
    if isinstance(numbers, str | Mapping):
        raise TypeError("not a list")
    return list(numbers)


def _value(expression: str) -> float | None:
    """The value; None for an invalid expression. Refuses `**` (cost) and `//` (not an operator of the game)."""
    if "**" in expression or "//" in expression:
        return None
    try:
        return float(simpleeval.simple_eval(expression))
    except (simpleeval.InvalidExpression, SyntaxError, ArithmeticError, TypeError, ValueError, RecursionError):
        return None
