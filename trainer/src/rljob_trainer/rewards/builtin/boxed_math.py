r"""boxed_math: the expression in the last \boxed{}, compared as mathematics by math-verify."""

from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.builtin.expressions import boxed, equal
from rljob_trainer.rewards.builtin.truth import mathematical
from rljob_trainer.rewards.protocol import Call


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    r"""1 for an expression equal to the ground truth (\boxed{1/2} for 0.5), format_score for another, 0 for none.

    If the ground truth is a list, each element is right.
    math-verify limits its own time by SIGALRM, which needs the main thread: reward processes call it there.
    """

    format_score: float = 0.0

    def __call__(self, call: Call) -> float:
        truths = [answer for text in mathematical(call.ground_truth) for answer in boxed(text)[:1] or [text]]
        answers = boxed(call.solution_str)
        if not answers:
            return 0.0
        return 1.0 if equal(truths, answers) else self.format_score
