"""The samples of a step with a skipped update, as rows of JSON for people: one a trajectory, or a supervised row."""

from collections.abc import Iterator, Sequence
from typing import Any

from rljob_trainer.data.supervised import SupervisedExample
from rljob_trainer.types import Floats, Group, Trajectory


def trained_rows(groups: Sequence[Group], advantages: Sequence[Floats], step: int) -> Iterator[dict[str, Any]]:
    """advantages: [R] of each trajectory, through groups and their episodes."""
    each = iter(advantages)
    for group in groups:
        for episode in group.episodes:
            for trajectory in episode.trajectories:
                found = {"step": step, "task": group.task.id, "sample": episode.sample, "reward": float(episode.reward)}
                yield found | _tokens(trajectory) | {"advantages": next(each).tolist()}


def supervised_rows(examples: Sequence[SupervisedExample], step: int) -> Iterator[dict[str, Any]]:
    for example in examples:
        for row in example.rows:
            yield {"step": step, "row": example.id} | _tokens(row)


def _tokens(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "tokenIds": trajectory.token_ids.tolist(),
        "inLoss": trajectory.in_loss.tolist(),
        "logProbs": trajectory.log_probs[trajectory.in_loss].tolist(),
    }
