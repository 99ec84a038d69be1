"""reasoning_gym: the verifier of the task that a reasoning-gym:// row comes from."""

import re
from decimal import Decimal
from typing import Literal

from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.builtin.numbers import Number, last_number
from rljob_trainer.rewards.protocol import Call

_TAGGED = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """The verifier's score of the answer, 0 for a response without one.

    answer: where the answer is. tagged: in the last <answer>...</answer>, or without one the whole response. number:
    the last number. whole: the response. partial: whether a score below 1 counts; without it, it is 0.
    """

    answer: Literal["tagged", "number", "whole"] = "tagged"
    partial: bool = True

    def __call__(self, call: Call) -> float:
        from rljob_trainer.data.gym import score  # the library takes a second to import

        try:
            source, question = str(call.extra_info["source"]), str(call.extra_info["question"])
            index = int(call.extra_info["index"])
        except (KeyError, TypeError, ValueError) as error:
            message = "extra_info has no source, index and question; score rows of reasoning-gym:// alone"
            raise ValueError(message) from error
        answer = self._answer(call.solution_str)
        value = score(source, index, question, answer) if answer else 0.0
        return value if self.partial or value >= 1 else 0.0

    def _answer(self, response: str) -> str:
        if self.answer == "number":
            number = last_number(response)
            return _written(number) if number else ""
        tagged = _TAGGED.findall(response) if self.answer == "tagged" else []
        return tagged[-1] if tagged else response.strip()


def _written(number: Number) -> str:
    """As verifiers of numbers read it: 12, 0.5 or 1/3."""
    value = number.value
    if value.denominator == 1 or number.fraction:
        return str(value)
    return f"{Decimal(value.numerator) / value.denominator:f}"
