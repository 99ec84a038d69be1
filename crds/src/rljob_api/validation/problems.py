"""The errors of a file: where each is, what is wrong and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One error, or one note, on one field.

    source: the file's name as the caller gave it, or the option ("--set training.steps=x") that wrote the value.
    line, column: counted from 1, in `source`; None if `source` has no lines.
    field: camelCase path from the document's root ("spec.rewards.functions[0].weight"); "" is the document.
    message: what is wrong, and which values are valid.
    remedy: what to do, as a sentence; "" if the message says it.
    """

    source: str
    line: int | None
    column: int | None
    field: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        position = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        parts = [position, self.field, self.message] if self.field else [position, self.message]
        return ": ".join(parts) + (f". {self.remedy}" if self.remedy else "")


class InvalidRLJob(Exception):
    """A file that is not one valid RLJob. `problems` holds every error in it, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return render_problems(self.problems)


def render_problems(problems: Iterable[Problem]) -> str:
    """One line a problem: `FILE:LINE:COL: spec.rollout.engine: what is wrong. What to do`."""
    return "\n".join(map(str, problems))
