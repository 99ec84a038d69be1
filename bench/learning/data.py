"""What a task's example is: its spec, and the rows that it trains on and is validated on."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import Any

from bench.learning.arms import ROOT, Task
from rljob_api.v1alpha1.rljob import RLJobSpec
from rljob_api.validation import load_rljob
from rljob_trainer.data.generated import generated_rows
from rljob_trainer.rewards.builtin.countdown import Reward
from rljob_trainer.rewards.protocol import Call

Rows = Sequence[Mapping[str, Any]]


def digest(task: Task, overrides: Sequence[str] = ()) -> str:
    """Of an arm's job: its example's spec with the arm's overrides, and all rows. Results with another one are of
    another job, whatever the names of task and arm.

    What only repeats a default does not count, nor does a comment, nor where the project lies; a default that changes
    shows in the commit alone.
    """
    spec = load_rljob(task.example, list(overrides)).spec
    rows = _rows_digest(tuple(spec.data.train), tuple(spec.data.validation))
    return _hash([_as_recorded(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)), rows])


@cache
def _rows_digest(train: Sequence[str], validation: Sequence[str]) -> str:
    """The arms of a task share it."""
    return _hash([_rows(train), _rows(validation)])


def _as_recorded(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec under the names that its fields had when the first results were recorded: a new name is no new job."""
    if spec["actor"].get("recompute") == "none":
        actor = {name: value for name, value in spec["actor"].items() if name != "recompute"}
        return spec | {"actor": actor | {"gradientCheckpointing": False}}
    return spec


def validation_prompts(task: Task) -> list[str]:
    return _prompts(_spec(task).data.validation)


def seen_backwards(task: Task) -> int:
    """How many of its validation prompts have their reverse among the training prompts."""
    data = _spec(task).data
    trained = set(_prompts(data.train))
    return sum(prompt[::-1] in trained for prompt in _prompts(data.validation))


def reward_of_sums(countdown: Task) -> float:
    """What a model gets on the validation prompts that adds all numbers, whatever the target."""
    spec = _spec(countdown)
    (function,) = spec.rewards.functions
    reward = Reward(**function.arguments)
    truths = [row["reward_model"]["ground_truth"] for row in _rows(spec.data.validation)]
    return mean(reward(Call("", "+".join(map(str, truth["numbers"])), truth, {})) for truth in truths)


def _spec(task: Task) -> RLJobSpec:
    return load_rljob(task.example, []).spec


def _prompts(sources: Sequence[str]) -> list[str]:
    return [row["prompt"][-1]["content"] for row in _rows(sources)]


def _rows(sources: Sequence[str]) -> Rows:
    return [row for source in sources for row in _rows_of(source)]


@cache
def _rows_of(source: str) -> Rows:
    """A page asks several times for the same tens of thousands."""
    return list(generated_rows(source, "spec.data"))


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True).replace(f"{ROOT}/", "")
    return hashlib.sha256(text.encode()).hexdigest()[:8]
