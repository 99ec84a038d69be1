r"""boxed_math: the expression in the last \boxed{}, compared as mathematics by math-verify."""

from typing import Any

from math_verify import parse, verify
from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.protocol import Call

_BOXED = r"\boxed{"


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    r"""1 for an expression equal to the ground truth (\boxed{1/2} for 0.5), format_score for another, 0 for none.

    math-verify limits its own time by SIGALRM, which needs the main thread: reward processes call it there.
    """

    format_score: float = 0.0

    def __call__(self, call: Call) -> float:
        answer = last_boxed(call.solution_str)
        if answer is None:
            return 0.0
        truth = last_boxed(str(call.ground_truth)) or str(call.ground_truth)
        if answer.strip() == truth.strip() or verify(_parse(truth), _parse(answer)):
            return 1.0
        return self.format_score


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{} of `text`, with nested braces; None if there is none or it is not closed."""
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth = 1
    for end in range(start + len(_BOXED), len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + len(_BOXED) : end]
    return None


def _parse(expression: str) -> list[Any]:
    parsed: list[Any] = parse(f"{_BOXED}{expression}}}")
    return parsed
