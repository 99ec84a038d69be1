"""exact_match: 1 if the response equals the ground truth, else 0."""

from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.builtin.truth import answers, same
from rljob_trainer.rewards.protocol import Call


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """The response equals the ground truth, or an element of it if it is a list; a number is compared by value.

    strip: ignore whitespace at both ends. ignore_case: ignore case.
    """

    strip: bool = True
    ignore_case: bool = False

    def __call__(self, call: Call) -> float:
        response = self._plain(call.solution_str)
        right = (self._plain(each) if isinstance(each, str) else each for each in answers(call.ground_truth))
        return float(any(same(response, answer) for answer in right))

    def _plain(self, text: str) -> str:
        text = text.strip() if self.strip else text
        return text.casefold() if self.ignore_case else text
