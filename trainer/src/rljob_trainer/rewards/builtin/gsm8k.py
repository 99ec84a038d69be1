"""gsm8k: the number after the last "####", compared as a number."""

from typing import Literal

from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.builtin.numbers import last_number, marked_number
from rljob_trainer.rewards.builtin.truth import mathematical
from rljob_trainer.rewards.protocol import Call


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """1 for the right number, format_score for another number in the right place, 0 for none.

    "#### $1,000.00" is 1000. The ground truth is a number, a solution that ends in one, or a list of those.
    method: strict reads the number after the last "####"; flexible falls back on the last number of the response.
    """

    method: Literal["strict", "flexible"] = "strict"
    format_score: float = 0.0

    def __call__(self, call: Call) -> float:
        truths = [marked_number(text) or last_number(text) for text in mathematical(call.ground_truth)]
        if None in truths:
            raise ValueError(f"ground_truth {call.ground_truth!r} has no number")
        answer = marked_number(call.solution_str)
        if answer is None and self.method == "flexible":
            answer = last_number(call.solution_str)
        if answer is None:
            return 0.0
        return 1.0 if any(truth is not None and answer.equals(truth) for truth in truths) else self.format_score
