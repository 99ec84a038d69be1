"""gsm8k: the number after the last "####", compared as a number."""

import re
from decimal import Decimal, InvalidOperation
from typing import Literal

from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.protocol import Call

_NUMBER = r"[-+]?\s*\$?\s*(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """1 for the right number, format_score for another number in the right place, 0 for none.

    "#### $1,000.00" is 1000. The ground truth is a number or a solution that ends in one.
    method: strict reads the number after the last "####"; flexible falls back on the last number of the response.
    """

    method: Literal["strict", "flexible"] = "strict"
    format_score: float = 0.0

    def __call__(self, call: Call) -> float:
        truth = _last_number(str(call.ground_truth), flexible=True)
        if truth is None:
            raise ValueError(f"ground_truth {call.ground_truth!r} has no number")
        answer = _last_number(call.solution_str, flexible=self.method == "flexible")
        if answer is None:
            return 0.0
        return 1.0 if answer == truth else self.format_score


def _last_number(text: str, *, flexible: bool) -> Decimal | None:
    found: list[str] = _MARKED.findall(text) or (_ANY.findall(text) if flexible else [])
    try:
        return Decimal(re.sub(r"[\s$,]", "", found[-1])) if found else None
    except InvalidOperation:
        return None
