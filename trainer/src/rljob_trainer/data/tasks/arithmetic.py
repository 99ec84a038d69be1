"""arithmetic: compute with two numbers. The prompt is "What is 47 * 83?", the answer "3901".

83 * 47 is in the same split, and so are all other operations with the two numbers. With calls=0.2, one response in five
to a question calls the tool calculator, and further rows answer its results: a supervised start for calls.
"""

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from pydantic.dataclasses import dataclass

from rljob_trainer.data.tasks.base import PARAMETERS, Example
from rljob_trainer.data.tasks.numbers import NumbersTask
from rljob_trainer.environments.builtin.calculator import calculator
from rljob_trainer.environments.tools import make_tools

_COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


@dataclass(frozen=True, config=PARAMETERS)
class Arithmetic(NumbersTask):
    """Compute with two numbers of minDigits to maxDigits digits.

    Each operator and each length is equally likely. Only 0 itself begins with 0.
    """

    operators: Annotated[str, StringConstraints(pattern=r"^[-+*]{1,3}$")] = "+-*"
    calls: Annotated[float, Field(ge=0, le=1)] = 0.0

    def example(self, rng: random.Random) -> Example:
        first, second = self.number(rng), self.number(rng)
        sign = rng.choice(self.operators)
        result = str(_COMPUTE[sign](first, second))
        key = " ".join(map(str, sorted((first, second))))
        expression = f"{first} {sign} {second}"
        prompt = f"What is {expression}?"
        if not self.calls:
            return Example(key, prompt, ground_truth=result, response=result)
        call = _call(expression)
        kind = rng.random() * (1 + self.calls)  # 1 question in all, and its result where the response calls
        if kind < self.calls:
            return Example(key, prompt, ground_truth=result, response=call, tools=_schemas())
        answered = ({"role": "assistant", "content": call}, {"role": "tool", "content": result}) if kind >= 1 else ()
        return Example(key, prompt, ground_truth=result, response=result, between=answered, tools=_schemas())


def _call(expression: str) -> str:
    written = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    return f"<tool_call>{written}</tool_call>"


@cache
def _schemas() -> Sequence[Mapping[str, Any]]:
    return [tool.schema for tool in make_tools([calculator])]
