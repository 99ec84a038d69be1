"""Shared by reward functions and models: responses, sums of scores, and responses without a score."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_api.v1alpha1 import Rewards
from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.scores import GroupScore
from rljob_trainer.types import Floats, Task

_EXCERPT = 60


@dataclass(frozen=True, slots=True)
class Response:
    """One response to score. Functions receive the other fields in extra_info.

    answers: the text of each turn; None in a job without an environment.
    """

    text: str
    tokens: int
    truncated: bool = False
    answers: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """One of the summed rewards. field: its field in the spec ("spec.rewards.functions[0]")."""

    name: str
    field: str


def without_score(
    rewards: Rewards, component: Component, reason: str, task: Task, responses: Sequence[Response], index: int
) -> GroupScore:
    """The score of a group whose response `index` has none, if rewards.onError is drop_group.

    Raises:
        RewardError: rewards.onError is fail; names the sample.
    """
    text = responses[index].text
    excerpt = repr(text[:_EXCERPT]) + ("..." if len(text) > _EXCERPT else "")
    message = f"reward {component.name} {reason}, for prompt {task.id}, sample {index}: {excerpt}"
    if rewards.on_error == "fail":
        raise RewardError(f"{message}; correct it, or set rewards.onError: drop_group", field=component.field)
    nothing = np.full(len(responses), np.nan, dtype=np.float32)
    return GroupScore(task.id, nothing, {}, message)


def summed(parts: Sequence[GroupScore]) -> GroupScore:
    """The sum of one group's scores by functions and by models; the error of a part becomes the group's."""
    for part in parts:
        if part.error is not None:
            return part
    rewards: Floats = np.stack([part.rewards for part in parts]).sum(axis=0, dtype=np.float32)
    components = {name: values for part in parts for name, values in part.components.items()}
    each = [part.spans for part in parts if part.spans]
    spans = [[span for own in of_response for span in own] for of_response in zip(*each, strict=True)]
    return GroupScore(parts[0].task_id, rewards, components, spans=spans)
