"""reverse-text: write a word of lowercase letters backwards. The prompt is "abc", the answer "cba"."""

import random
import string
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from rljob_trainer.data.tasks.base import PARAMETERS, Example


@dataclass(frozen=True, config=PARAMETERS)
class ReverseText:
    """Write a word of minLength to maxLength letters backwards; letters is the size of the alphabet.

    Each length is equally likely. The prompt is the word alone, so that a model of a few hundred thousand parameters
    learns the task in seconds.
    """

    min_length: Annotated[int, Field(ge=1, le=256)] = 3
    max_length: Annotated[int, Field(ge=1, le=256)] = 8
    letters: Annotated[int, Field(ge=2, le=26)] = 26

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_length > self.max_length:
            raise ValueError(f"minLength {self.min_length} is above maxLength {self.max_length}")
        return self

    @property
    def ability(self) -> str:
        return "text"

    def example(self, rng: random.Random) -> Example:
        length = rng.randint(self.min_length, self.max_length)
        word = "".join(rng.choices(string.ascii_lowercase[: self.letters], k=length))
        return Example(word, prompt=word, ground_truth=word[::-1], response=word[::-1])
