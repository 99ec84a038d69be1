"""Tasks of numbers: how long these are."""

import random
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from rljob_trainer.data.tasks.base import PARAMETERS


@dataclass(frozen=True, config=PARAMETERS)
class NumbersTask:
    """Numbers of minDigits to maxDigits digits. Each length is equally likely. Only 0 itself begins with 0."""

    min_digits: Annotated[int, Field(ge=1, le=18)] = 1
    max_digits: Annotated[int, Field(ge=1, le=18)] = 2

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_digits > self.max_digits:
            raise ValueError(f"minDigits {self.min_digits} is above maxDigits {self.max_digits}")
        return self

    @property
    def ability(self) -> str:
        return "math"

    def number(self, rng: random.Random) -> int:
        digits = rng.randint(self.min_digits, self.max_digits)
        return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
