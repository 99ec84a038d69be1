"""countdown: make a number out of given ones, each used once. The prompt is "3 5 9 = 24", a right answer "3*5+9".
All targets of the same numbers are in the same split.

The ground truth is {"target": 24, "numbers": [3, 5, 9]}; the reward `countdown` accepts every right expression. The
response for SFT is one random right expression, so a model that imitates it still makes mistakes.
"""

import random
import re
from dataclasses import dataclass as plain_dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from rljob_trainer.data.tasks.base import PARAMETERS, Example

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_ATOM = 3
_ATTEMPTS = 10_000


def _operators(given: str) -> str:
    if not re.fullmatch(r"[-+*/]{1,4}", given):
        raise ValueError("give one to four of + - * /; in a URL a + is written %2B")
    return given


@dataclass(frozen=True, config=PARAMETERS)
class Countdown:
    """Make a target up to maxTarget of count numbers up to maxNumber, each used once."""

    count: Annotated[int, Field(ge=2, le=6)] = 3
    max_number: Annotated[int, Field(ge=2, le=1000)] = 9
    max_target: Annotated[int, Field(ge=2, le=100_000)] = 99
    operators: Annotated[str, AfterValidator(_operators)] = "+-*"

    @property
    def ability(self) -> str:
        return "math"

    def example(self, rng: random.Random) -> Example:
        for _ in range(_ATTEMPTS):
            numbers = sorted(rng.randint(1, self.max_number) for _ in range(self.count))  # one prompt for each exercise
            made = self._expression(rng, rng.sample(numbers, len(numbers)))
            if made is not None and made.value.denominator == 1 and 1 <= made.value <= self.max_target:
                target = int(made.value)
                key = " ".join(map(str, numbers))
                truth = {"target": target, "numbers": numbers}
                return Example(key, prompt=f"{key} = {target}", ground_truth=truth, response=made.text)
        raise ValueError(
            f"too few exercises have a target up to {self.max_target}; raise maxTarget, or lower maxNumber"
        )

    def _expression(self, rng: random.Random, numbers: list[int]) -> "_Expression | None":
        """An expression of all numbers in this order; None if it divides by 0."""
        if len(numbers) == 1:
            return _Expression(str(numbers[0]), Fraction(numbers[0]), _ATOM)
        cut, operator = rng.randint(1, len(numbers) - 1), rng.choice(self.operators)
        left, right = self._expression(rng, numbers[:cut]), self._expression(rng, numbers[cut:])
        return left.join(operator, right) if left and right and (operator != "/" or right.value) else None


@plain_dataclass(frozen=True, slots=True)
class _Expression:
    """precedence: of its outermost operator."""

    text: str
    value: Fraction
    precedence: int

    def join(self, operator: str, right: "_Expression") -> "_Expression":
        precedence = _PRECEDENCE[operator]
        tighter = precedence + (operator in "-/")  # 1-(2-3) needs its parentheses, 1+(2-3) does not
        text = f"{self.inside(precedence)}{operator}{right.inside(tighter)}"
        return _Expression(text, _apply(operator, self.value, right.value), precedence)

    def inside(self, precedence: int) -> str:
        return self.text if self.precedence >= precedence else f"({self.text})"


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left / right
