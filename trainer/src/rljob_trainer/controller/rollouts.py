"""From prompts to scored groups: engines generate, reward processes score each group the moment it is finished.

engine 0 ──group──> score ──┐
engine 1 ──group──> score ──┼──> summaries, in the order of the prompts
engine 1 ──group──> score ──┘    (the groups' tensors stay in the object store)
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import ObjectRefGenerator

from rljob_trainer.errors import InfrastructureError
from rljob_trainer.types import Group, GroupSummary, Prompt, Sampling
from rljob_trainer.waiting import wait_for


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group's tensors by reference, and what the controller knows of it."""

    group: "ray.ObjectRef[Group]"
    summary: GroupSummary


@dataclass(frozen=True, slots=True)
class Rollout:
    """generate_seconds: until the last response was finished. reward_seconds: how much longer the last score took."""

    groups: list[ScoredGroup]
    generate_seconds: float
    reward_seconds: float


def roll_out(
    engines: Sequence[Any],
    rewards: Any,
    prompts: Sequence[Prompt],
    seeds: Sequence[Sequence[int]],
    sampling: Sampling,
    seconds: float,
) -> Rollout:
    """Generate and score one group for each prompt.

    engines, rewards: Ray workers (EngineHost, RewardWorker). seeds: [prompts][samples per prompt].
    seconds: deadline of the whole. Raises InfrastructureError when it passes, RewardError as the reward's policy says.
    """
    start = time.monotonic()
    streams = [
        engine.generate_groups.options(num_returns="streaming").remote(prompts[i::n], sampling, seeds[i::n])
        for n in [min(len(engines), len(prompts))]
        for i, engine in enumerate(engines[:n])
    ]
    pending: list[Any] = list(streams)
    groups: dict[Any, Any] = {}
    done: dict[str, ScoredGroup] = {}
    generated = start
    while pending:
        ready, pending = ray.wait(pending, timeout=max(0.0, start + seconds - time.monotonic()))
        if not ready:
            raise InfrastructureError(
                f"waited {seconds:.0f} s for {len(prompts) - len(done)} of {len(prompts)} groups of responses: "
                "raise spec.rollout.deadline if they take that long"
            )
        if isinstance(ready[0], ObjectRefGenerator):
            group = next(ready[0], None)
            if group is not None:
                score = rewards.score.remote(group)
                groups[score] = group
                pending += [ready[0], score]
                generated = time.monotonic()
        else:
            summary = wait_for(ready[0], seconds, "a score")
            done[summary.prompt_id] = ScoredGroup(groups.pop(ready[0]), summary)
    ordered = [done[prompt.id] for prompt in prompts]
    return Rollout(ordered, generated - start, time.monotonic() - generated)
