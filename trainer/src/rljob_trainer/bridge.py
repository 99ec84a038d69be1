"""Old groups as new ones, and calls by name, until rollouts, engines and journal have moved to the new types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from rljob_trainer.old_types import Group as OldGroup
from rljob_trainer.old_types import GroupSummary as OldSummary
from rljob_trainer.types import Episode, Group, GroupSummary, Task, answered
from rljob_trainer.workers.worker import Worker

if TYPE_CHECKING:
    from rljob_trainer.rollouts.rollouts import ScoredGroup


@dataclass(frozen=True, slots=True)
class Ref:
    """A group of the new types in a bundle."""

    bundle: "ray.ObjectRef[Sequence[Group]]"
    index: int


def call(worker: Worker[Any], method: str, *arguments: Any) -> Any:
    """Ray's reference to the answer."""
    return worker.handle.call.remote(worker.attempt, method, *arguments)


def refs(groups: "Sequence[ScoredGroup]", temperature: float) -> list[Ref]:
    """The groups, converted."""
    fetched = ray.get([group.place.bundle for group in groups])
    new = [_group(bundle[group.place.index], temperature) for bundle, group in zip(fetched, groups, strict=True)]
    bundle = ray.put(new)
    return [Ref(bundle, index) for index in range(len(new))]


def summaries(groups: "Sequence[ScoredGroup]") -> list[GroupSummary]:
    return [summary(group.summary) for group in groups]


def summary(old: OldSummary) -> GroupSummary:
    return GroupSummary(
        task_id=old.prompt_id,
        rewards=old.score.rewards,
        components=old.score.components,
        owners=tuple(range(len(old.response_tokens))),
        tokens=tuple(old.prompt_tokens + tokens for tokens in old.response_tokens),
        loss_tokens=old.response_tokens,
        prompt_tokens=old.prompt_tokens,
        truncated=old.truncated,
        oldest_version=old.policy_version,
        digest=old.digest,
        error=old.score.error,
        retries=old.score.retries,
    )


def _group(old: OldGroup, temperature: float) -> Group:
    task = Task(old.prompt.id, old.prompt.messages, old.prompt.token_ids, old.prompt.ground_truth, {}, "")
    episodes = (
        Episode(
            sample.prompt_id,
            sample.sample_index,
            (
                answered(
                    old.prompt.token_ids,
                    sample.token_ids,
                    sample.log_probs,
                    old.policy_version,
                    temperature,
                    sample.finish_reason,
                ),
            ),
        )
        for sample in old.samples
    )
    return Group(task, tuple(episodes))
