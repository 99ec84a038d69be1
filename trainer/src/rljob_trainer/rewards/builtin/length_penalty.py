"""length_penalty: falls from 0 to -1 as a response approaches its maximum length."""

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from rljob_trainer.rewards.builtin import ARGUMENTS
from rljob_trainer.rewards.protocol import Call


@dataclass(frozen=True, config=ARGUMENTS)
class Reward:
    """Soft overlong punishment of DAPO (https://arxiv.org/abs/2503.14476, equation 13), with n response tokens:

        0                                                  n <= max_tokens - buffer_tokens
        (max_tokens - buffer_tokens - n) / buffer_tokens   n <= max_tokens
        -1                                                 above

    For 100 and 20: n = 80 gives 0, n = 90 gives -0.5, n = 100 and more give -1.
    """

    max_tokens: Annotated[int, Field(ge=1)]
    buffer_tokens: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(f"buffer_tokens {self.buffer_tokens} is above max_tokens {self.max_tokens}")
        return self

    def __call__(self, call: Call) -> float:
        tokens = int(call.extra_info["response_tokens"])
        return max(-1.0, min(0.0, (self.max_tokens - self.buffer_tokens - tokens) / self.buffer_tokens))
