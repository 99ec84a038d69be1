"""The interface of a generated task: parameters, and one example at a time."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from rljob_trainer.types import Message

Split = Literal["train", "validation"]

PARAMETERS = ConfigDict(alias_generator=to_camel, extra="forbid", populate_by_name=True)
"""Configures a task's pydantic dataclass: its fields are the URL's arguments in camelCase."""


@dataclass(frozen=True, slots=True)
class Example:
    """One exercise.

    key: what the exercise teaches; all examples of one key belong to the same split.
    prompt: the user's message. ground_truth: for the reward. response: a right answer, for SFT.
    between: messages between the prompt and the response. tools: JSON schemas of what the response may call.
    """

    key: str
    prompt: str
    ground_truth: Any
    response: str
    between: Sequence[Message] = ()
    tools: Sequence[Mapping[str, Any]] = ()


class Task(Protocol):
    """A pydantic dataclass of parameters that makes examples."""

    def example(self, rng: random.Random) -> Example:
        """One exercise, drawn with `rng` alone."""

    @property
    def ability(self) -> str:
        """Verl's column of that name."""


def to_row(name: str, index: int, split: Split, task: Task, example: Example) -> dict[str, Any]:
    """The example as verl's row, with its response."""
    tools = {"tools": json.dumps(example.tools)} if example.tools else {}
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": example.prompt}, *example.between],
        "ability": task.ability,
        "reward_model": {"style": "rule", "ground_truth": example.ground_truth},
        "extra_info": {"split": split, "index": index},
        "response": example.response,
        **tools,
    }
