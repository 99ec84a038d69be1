"""What all builtin rewards read as ground truth: text, a number, or a list of accepted answers.

"4"             ["4"]
4.0             ["4"]             a number is compared by value
["5", "five"]   ["5", "five"]     each is right
None, []        ValueError        the row has nothing to compare with
"""

import json
import math
from decimal import Decimal, InvalidOperation
from typing import Any


def answers(truth: Any) -> list[Any]:
    """The accepted answers: texts and numbers, at least one. Raises ValueError or TypeError."""
    accepted = list(truth) if isinstance(truth, list | tuple | set | frozenset) else [truth]
    if not accepted:
        raise ValueError("ground_truth is an empty list; this reward needs an answer to compare with")
    for answer in accepted:
        if answer is None:
            raise ValueError("the row has no ground_truth (null); this reward needs one to compare with")
        if not isinstance(answer, str | int | float | Decimal):
            raise TypeError(f"ground_truth {truth!r} is neither text nor a number, nor a list of them")
    return accepted


def texts(truth: Any) -> list[str]:
    """The accepted answers as text."""
    return [written(answer) for answer in answers(truth)]


def mathematical(truth: Any) -> list[str]:
    """As texts(); also reads a list that a data set wrote as JSON, such as '["5", "five"]'."""
    if isinstance(truth, str) and truth.lstrip().startswith('["'):
        try:
            return texts(json.loads(truth))
        except json.JSONDecodeError:
            pass
    return texts(truth)


def written(answer: Any) -> str:
    """Text of an answer: 4.0 is "4", and 1e20 is written out."""
    if isinstance(answer, str | bool) or not math.isfinite(answer):
        return str(answer)
    number = Decimal(str(answer))
    return f"{number.to_integral_value() if number == number.to_integral_value() else number:f}"


def same(response: str, answer: Any) -> bool:
    """Whether a text is the answer: to the letter for text, by value for a number."""
    if isinstance(answer, str):
        return response == answer
    if isinstance(answer, bool):
        return response.lower() == str(answer).lower()
    try:
        return Decimal(response) == Decimal(str(answer))
    except InvalidOperation:
        return False
