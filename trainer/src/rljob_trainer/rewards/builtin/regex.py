"""regex: 1 if a regular expression matches, else 0."""

import re
from typing import Self

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.builtin.truth import answers, same
from rljob_trainer.rewards.protocol import Call


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    r"""The pattern occurs in the response.

    compare: the first group of the last match must also equal the ground truth, or an element of it if it is a list,
    without whitespace at the ends. A number is compared by value. With pattern "<answer>(.*?)</answer>", the response
    "<answer>4</answer>" is right for ground truth 4.
    The pattern contains its flags, as in "(?s)<think>.*</think>.*".
    """

    pattern: str
    compare: bool = False

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r}: {error}") from error
        if self.compare and not groups:
            raise ValueError(f"pattern {self.pattern!r} has no group (...) to compare with the ground truth")
        return self

    def __call__(self, call: Call) -> float:
        found = list(re.finditer(self.pattern, call.solution_str))
        if not found or not self.compare:
            return float(bool(found))
        answer = (found[-1].group(1) or "").strip()
        right = (each.strip() if isinstance(each, str) else each for each in answers(call.ground_truth))
        return float(any(same(answer, each) for each in right))
