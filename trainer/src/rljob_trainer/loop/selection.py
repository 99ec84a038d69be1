"""Which groups a step uses, as rounds of generation bring them (algorithm.dynamicSampling)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog

from rljob_api.resolve import ResolvedAlgorithm
from rljob_api.v1alpha1.algorithm import DynamicSampling
from rljob_trainer.errors import RewardError
from rljob_trainer.loop.metrics import (
    Metrics,
    baseline_metrics,
    cache_metrics,
    episode_metrics,
    length_metrics,
    recovery_metrics,
    reward_metrics,
)
from rljob_trainer.loop.teaching import flat_groups
from rljob_trainer.progress import names
from rljob_trainer.rollouts.calls import GroupRef
from rljob_trainer.rollouts.rollouts import Rollout
from rljob_trainer.types import GroupSummary, next_try

log = structlog.get_logger()


@dataclass(slots=True)
class Selection:
    """The groups of one step.

    wanted: how many the step trains on. kept: those so far. extra: more than those, of an oversampled round.
    flat: that teach nothing. outside: beyond the bounds of accuracy. failed: why others were not scored, by task.
    aborted: tasks whose groups were not waited for. rewarded: whether the job has rewards to report.
    penalties: as in `accuracy`.
    """

    step: int
    wanted: int
    algorithm: ResolvedAlgorithm
    kept: list[GroupRef] = field(default_factory=list)
    extra: list[GroupRef] = field(default_factory=list)
    flat: list[GroupRef] = field(default_factory=list)
    outside: list[GroupRef] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    rounds: list[Rollout] = field(default_factory=list)
    aborted: int = 0
    rewarded: bool = True
    penalties: Mapping[str, float] = field(default_factory=dict)

    @property
    def settings(self) -> DynamicSampling:
        return self.algorithm.dynamic_sampling

    @property
    def needed(self) -> int:
        return self.wanted - len(self.kept)

    def usable(self, groups: list[GroupRef]) -> int:
        """How many of these groups the step can use."""
        scored = [group for group in groups if group.summary.error is None]
        return len(split_groups(scored, self.algorithm, self.penalties)[0] if self.settings.enabled else scored)

    def add(self, rollout: Rollout, tasks: int) -> None:
        """A round that was made of so many tasks."""
        self.rounds.append(rollout)
        self.aborted += tasks - len(rollout.groups)
        groups, errors = scored_groups(rollout, self.step)
        self.failed |= errors
        useful, equal, beyond = split_groups(groups, self.algorithm, self.penalties)
        chosen, more = first_finished(useful if self.settings.enabled else groups, self.needed, rollout.finished)
        self.kept += chosen
        self.extra += more
        self.flat += equal
        self.outside += beyond

    def scored(self) -> list[GroupRef]:
        return [*self.kept, *self.flat, *self.outside, *self.extra]

    def to_try_again(self) -> list[str]:
        return to_try_again([*self.kept, *self.flat, *self.outside], self.settings, self.penalties)

    def trained(self) -> list[GroupRef]:
        """What the step trains on: at most as many groups as it wants, also such that are left out if others teach.

        Raises RewardError without any.
        """
        trained = self.kept or (self.outside + self.flat)[: self.wanted]
        if not trained:
            last = list(self.failed.values())[-1]
            message = f"every group of step {self.step} was left out; the last: {last}"
            raise RewardError(message, field="spec.rewards")
        return trained

    def dropped(self) -> dict[str, str]:
        """Why the step does not use a task's group."""
        used = {group.summary.task_id for group in self.trained()}
        why = {group.summary.task_id: "uninformative" for group in self.flat + self.outside}
        why = {task_id: reason for task_id, reason in why.items() if task_id not in used}
        return self.failed | why | {group.summary.task_id: "oversampled" for group in self.extra}

    def metrics(self) -> Metrics:
        """What a replay of the step has too."""
        trained = summaries(self.trained())
        metrics = reward_metrics(trained) if self.rewarded else {}
        metrics |= length_metrics(trained) | baseline_metrics(trained)
        return metrics | episode_metrics(trained) | {
            names.GROUPS_UNINFORMATIVE: float(len(self.flat)),
            names.GROUPS_DROPPED: float(len(self.failed)),
            names.GROUPS_TRIED_AGAIN: float(len(self.to_try_again())),
            names.GROUPS_OUT_OF_BOUNDS: float(len(self.outside)),
            names.GROUPS_ABORTED: float(self.aborted),
        }  # fmt: skip

    def found(self) -> Metrics:
        """How much of it the journal had, and how much of the prompts the engines had."""
        made = sum(len(each.groups) for each in self.rounds)
        journaled = recovery_metrics(sum(each.journaled for each in self.rounds), made)
        return journaled | cache_metrics([each.cache for each in self.rounds])


def scored_groups(rollout: Rollout, step: int) -> tuple[list[GroupRef], dict[str, str]]:
    """The groups that were scored, and why others were not, by task."""
    errors = {group.summary.task_id: error for group in rollout.groups if (error := group.summary.error) is not None}
    for error in errors.values():
        log.warning("group_dropped", step=step, reason=error)
    return [group for group in rollout.groups if group.summary.error is None], errors


def split_groups(
    groups: list[GroupRef], algorithm: ResolvedAlgorithm, penalties: Mapping[str, float] = {}
) -> tuple[list[GroupRef], list[GroupRef], list[GroupRef]]:
    """Groups to learn from, those that teach nothing, and those beyond the bounds of accuracy."""
    if not groups:
        return [], [], []
    bounds, flat = algorithm.dynamic_sampling, flat_groups(summaries(groups), algorithm)
    differ = [group for index, group in enumerate(groups) if index not in flat]
    within = [_within(accuracy(group.summary, penalties), bounds) for group in differ]
    useful = [group for group, inside in zip(differ, within, strict=True) if inside]
    beyond = [group for group, inside in zip(differ, within, strict=True) if not inside]
    return useful, [group for index, group in enumerate(groups) if index in flat], beyond


def first_finished(
    groups: list[GroupRef], needed: int, finished: Sequence[str]
) -> tuple[list[GroupRef], list[GroupRef]]:
    """At most `needed` groups, those that were finished first, and the others; each in the order given."""
    if len(groups) <= needed:
        return groups, []
    place = {task_id: index for index, task_id in enumerate(finished)}
    first = {group.summary.task_id for group in sorted(groups, key=lambda g: place[g.summary.task_id])[:needed]}
    inside = [group for group in groups if group.summary.task_id in first]
    return inside, [group for group in groups if group.summary.task_id not in first]


def to_try_again(groups: list[GroupRef], settings: DynamicSampling, penalties: Mapping[str, float] = {}) -> list[str]:
    """Ids under which tasks that were too hard are issued again, if they have tries left."""
    if settings.hard_retries is None or settings.min_accuracy is None:
        return []
    hard = [group.summary for group in groups if accuracy(group.summary, penalties) < settings.min_accuracy]
    ids = [next_try(each.task_id) for each in hard]
    return [each for each in ids if int(each.rpartition("/")[2]) <= settings.hard_retries]


def accuracy(group: GroupSummary, penalties: Mapping[str, float] = {}) -> float:
    """The mean reward of its episodes without length penalties. penalties: their weights, by component."""
    rewards = group.rewards.astype(np.float64)
    for name, weight in penalties.items():
        if name in group.components:  # their sum was rounded to float32: 1 has to stay within maxAccuracy 1
            own = np.nan_to_num(group.components[name].astype(np.float64))  # an episode without it has no penalty
            rewards = np.round(rewards - weight * own, 6)
    return float(rewards.mean())


def _within(mean: float, bounds: DynamicSampling) -> bool:
    low, high = bounds.min_accuracy, bounds.max_accuracy
    return (low is None or mean >= low) and (high is None or mean <= high)


def summaries(groups: Sequence[GroupRef]) -> list[GroupSummary]:
    return [group.summary for group in groups]
