"""addition: add two numbers. The prompt is "47+58", the answer "105"; 58+47 is in the same split."""

import random

from pydantic.dataclasses import dataclass

from rljob_trainer.data.tasks.base import PARAMETERS, Example
from rljob_trainer.data.tasks.numbers import NumbersTask


@dataclass(frozen=True, config=PARAMETERS)
class Addition(NumbersTask):
    """Add two numbers of minDigits to maxDigits digits.

    Each length is equally likely. Only 0 itself begins with 0.
    """

    def example(self, rng: random.Random) -> Example:
        first, second = self.number(rng), self.number(rng)
        total = str(first + second)
        key = "+".join(map(str, sorted((first, second))))
        return Example(key, prompt=f"{first}+{second}", ground_truth=total, response=total)
