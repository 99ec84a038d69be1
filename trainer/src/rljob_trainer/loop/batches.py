"""From a step's groups to each rank's plan, and from advantages of episodes to those of each rank's trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from rljob_api import ResolvedSpec
from rljob_api.v1alpha1.algorithm import Advantage
from rljob_trainer.advantage import AdvantageBatch, Turns, pairs, per_step
from rljob_trainer.errors import RewardError
from rljob_trainer.loop.metrics import all_rewards
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.own.advantage import advantage_of
from rljob_trainer.rank.plan import RankPlan, plan_step, plan_units
from rljob_trainer.types import Bools, Floats, GroupSummary, Trajectory, TurnSummary

Indexes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The trajectories of one step, numbered 0..N-1 through groups and their episodes.

    plans: one for each rank. totals: of each minibatch.
    critic_plans, critic_totals: the same passes in the critic's minibatches; empty without a critic.
    groups: [episodes], the group of each. owners: [N], the episode of each trajectory; ascending.
    lengths, loss_tokens: [N], all tokens of each trajectory, and those in the loss.
    """

    plans: list[RankPlan]
    totals: list[BatchTotals]
    groups: Indexes
    owners: Indexes
    lengths: Indexes
    loss_tokens: Indexes
    critic_plans: list[RankPlan] = field(default_factory=list)
    critic_totals: list[BatchTotals] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """All tokens of all trajectories."""
        return int(self.lengths.sum())

    @property
    def pairs(self) -> int:
        """Pairs of a preference loss, of which each counts as two trajectories."""
        return sum(each.trajectories for each in self.totals) // 2

    @property
    def episodes(self) -> int:
        return len(self.groups)

    def of_each(self, parts: Sequence[Sequence[Floats]]) -> list[Floats]:
        """Of each trajectory 0..N-1, from what each rank has or computed, in the order of its plan; 0 if none does."""
        by_index = {
            index: values
            for plan, part in zip(self.plans, parts, strict=True)
            for index, values in zip(plan.samples, part, strict=True)
        }
        return [by_index.get(i, np.zeros(count, np.float32)) for i, count in enumerate(self.loss_tokens)]


def batch_of_groups(groups: Sequence[GroupSummary], spec: ResolvedSpec) -> StepBatch:
    """Minibatches are of `actor.miniBatchSize` prompts, in the order of the groups; the last may be smaller."""
    episodes = [len(group.rewards) for group in groups]
    first = np.cumsum([0, *episodes[:-1]])
    owners = np.concatenate(
        [start + np.array(group.owners, np.int64) for start, group in zip(first, groups, strict=True)]
    )
    group_of = np.repeat(np.arange(len(groups)), episodes)
    wanted, critic = spec.actor.mini_batch_size, spec.critic.mini_batch_size if spec.critic else None
    size = min(wanted, critic or wanted)
    part_of = group_of[owners] // size
    minibatches = [np.flatnonzero(part_of == part) for part in range(-(-len(groups) // size))]
    lengths = np.array([tokens for group in groups for tokens in group.tokens])
    loss_tokens = np.array([tokens for group in groups for tokens in group.loss_tokens])
    positive = (all_rewards(groups) > 0)[owners]
    if spec.pairs:
        per_episode = np.bincount(owners, weights=loss_tokens, minlength=len(group_of)).astype(np.int64)
        units = [
            _trajectories_of(pair, owners, loss_tokens) for pair in pairs(all_rewards(groups), group_of, per_episode)
        ]
        parts = [[unit for unit in units if part_of[unit[0]] == part] for part in range(len(minibatches))]
        return _batch_of_units(parts, group_of, owners, lengths, loss_tokens, positive, spec)
    made = _batch(minibatches, group_of, owners, lengths, loss_tokens, positive, spec)
    if critic is None:
        return made
    plans, totals = _joined(made, wanted // size)
    critic_plans, critic_totals = _joined(made, critic // size)
    return replace(made, plans=plans, totals=totals, critic_plans=critic_plans, critic_totals=critic_totals)


def _joined(batch: StepBatch, count: int) -> tuple[list[RankPlan], list[BatchTotals]]:
    """Each `count` neighbouring minibatches as one, of the same passes."""
    parts = [slice(first, first + count) for first in range(0, len(batch.totals), count)]
    plans = [RankPlan(tuple(tuple(chain(*plan.minibatches[part])) for part in parts)) for plan in batch.plans]
    return plans, [sum(batch.totals[part], start=BatchTotals(0, 0)) for part in parts]


def batch_of_rows(rows: Sequence[Trajectory], spec: ResolvedSpec) -> StepBatch:
    """One minibatch of supervised rows; with preset dpo of pairs: preferred, rejected, preferred, ..."""
    lengths = np.array([len(row.token_ids) for row in rows])
    loss_tokens = np.array([row.loss_tokens for row in rows])
    every = np.arange(len(rows))
    positive = np.zeros(len(rows), np.bool_)
    if spec.pairs and spec.supervised_only:
        units = [[first, first + 1] for first in range(0, len(rows), 2)]
        return _batch_of_units([units], every, every, lengths, loss_tokens, positive, spec)
    return _batch([every], every, every, lengths, loss_tokens, positive, spec)


def _trajectories_of(pair: tuple[int, int], owners: Indexes, loss_tokens: Indexes) -> list[int]:
    """Those of both episodes that have tokens in the loss."""
    return [int(each) for episode in pair for each in np.flatnonzero((owners == episode) & (loss_tokens > 0))]


def _batch_of_units(
    minibatches: list[list[list[int]]], groups: Indexes, owners: Indexes, lengths: Indexes, loss_tokens: Indexes,
    positive: Bools, spec: ResolvedSpec,
) -> StepBatch:  # fmt: skip
    """As _batch, of pairs alone, each of which is seen by one pass. Trajectories in no pair take no part."""
    plans = plan_units(lengths.tolist(), minibatches, spec.ranks, spec.actor.tokens_per_micro_batch)
    parts = [np.array(list(chain(*units)), np.int64) for units in minibatches]
    totals = [
        replace(_totals(part, loss_tokens, positive), trajectories=2 * len(units))
        for part, units in zip(parts, minibatches, strict=True)
    ]
    return StepBatch(plans, totals, groups, owners, lengths, loss_tokens)


def _batch(
    minibatches: list[Indexes], groups: Indexes, owners: Indexes, lengths: Indexes, loss_tokens: Indexes,
    positive: Bools, spec: ResolvedSpec,
) -> StepBatch:  # fmt: skip
    """positive: [N], trajectories of episodes with a reward above 0."""
    parts = [minibatch.tolist() for minibatch in minibatches]
    plans = plan_step(lengths.tolist(), parts, spec.ranks, spec.actor.tokens_per_micro_batch)
    totals = [_totals(part, loss_tokens, positive) for part in minibatches]
    return StepBatch(plans, totals, groups, owners, lengths, loss_tokens)


def _totals(part: Indexes, loss_tokens: Indexes, positive: Bools) -> BatchTotals:
    return BatchTotals(
        tokens=int(loss_tokens[part].sum()),
        trajectories=int((loss_tokens[part] > 0).sum()),
        positive_tokens=int(loss_tokens[part][positive[part]].sum()),
    )


def advantages(
    groups: Sequence[GroupSummary], batch: StepBatch, penalties: Floats | None, spec: ResolvedSpec,
    teacher: Floats | None = None,
) -> list[list[Floats]]:  # fmt: skip
    """For each rank, the advantages [R] of each of its trajectories, in the order of its plan.

    penalties: [all tokens in the loss], coefficient x KL of each token if the KL acts in the reward.
    teacher: [all tokens in the loss], as AdvantageBatch has it.
    """
    given = advantage_batch(groups, batch, penalties, spec, teacher=teacher)
    if spec.algorithm.stepwise_advantage == "per_step":
        given = per_step(given)
    return of_ranks(batch, estimated(given, spec))


def estimated(given: AdvantageBatch, spec: ResolvedSpec) -> Floats:
    """What the advantage makes of rewards, and the teacher's signal."""
    found = advantage_of(spec.algorithm)(given)
    return found if given.teacher is None or spec.algorithm.advantage == "distillation" else found + given.teacher


def advantage_batch(
    groups: Sequence[GroupSummary], batch: StepBatch, penalties: Floats | None, spec: ResolvedSpec,
    values: Floats | None = None, teacher: Floats | None = None,
) -> AdvantageBatch:  # fmt: skip
    """What advantages are computed from. values: [all tokens in the loss], the critic's."""
    per_episode = np.bincount(batch.owners, weights=batch.loss_tokens, minlength=batch.episodes).astype(np.int64)
    algorithm = spec.algorithm
    return AdvantageBatch(
        all_rewards(groups),
        batch.groups,
        per_episode,
        penalties,
        algorithm.gamma,
        _baselines(groups),
        values,
        algorithm.lambda_,
        turns_of(groups),
        1.0 if algorithm.step_advantage_w is None else algorithm.step_advantage_w,
        algorithm.lambda_alpha,
        _token_rewards(groups, per_episode, algorithm.advantage),
        teacher,
    )


def turns_of(groups: Sequence[GroupSummary]) -> Turns | None:
    """Of all groups; None if each episode is one turn."""
    if all(group.turns is None for group in groups):
        return None
    parts = [group.turns or _single(group) for group in groups]
    first = np.cumsum([0, *(len(group.rewards) for group in groups[:-1])])
    return Turns(
        np.concatenate([start + np.array(part.owners, np.int64) for start, part in zip(first, parts, strict=True)]),
        np.array([tokens for part in parts for tokens in part.tokens], np.int64),
        np.concatenate([part.rewards for part in parts]),
        np.array([state for part in parts for state in part.states], np.int64),
        np.array([each for part in parts for each in part.order], np.int64),
    )


def _single(group: GroupSummary) -> TurnSummary:
    """Of a group whose episodes are one turn, which has no summary of turns."""
    every = range(len(group.rewards))
    tokens = np.bincount(group.owners, weights=group.loss_tokens, minlength=len(every)).astype(int)
    return TurnSummary(tuple(every), tuple(tokens.tolist()), group.rewards, *[(0,) * len(every)] * 2)


_BY_TOKEN: tuple[Advantage, ...] = ("reinforce_plus_plus", "gae", "custom")
"""Advantages that add up the rewards of tokens. The others compare whole episodes; remax adds up too, but its baseline,
the reward of the greedy answer, is without that answer's spans."""


def _token_rewards(groups: Sequence[GroupSummary], lengths: Indexes, advantage: Advantage) -> Floats | None:
    """[all tokens in the loss], the rewards inside responses; None if no response has one.

    Raises RewardError if the advantage cannot use them.
    """
    if not any(group.token_rewards for group in groups):
        return None
    if advantage == "distillation":
        return None  # rewards are only reported
    if advantage not in _BY_TOKEN:
        raise RewardError(
            f"a reward function returned spans, which advantage {advantage} does not support: set algorithm.advantage"
            " to reinforce_plus_plus or gae, or return no spans",
            field="spec.rewards.functions",
        )
    each = [own for group in groups for own in group.token_rewards or [()] * len(group.rewards)]
    rewards = np.zeros(int(lengths.sum()), np.float32)
    for first, own in zip(np.cumsum(lengths) - lengths, each, strict=True):
        for index, value in own:
            rewards[first + index] = value
    return rewards


def of_ranks(batch: StepBatch, flat: Floats) -> list[list[Floats]]:
    """[all tokens in the loss] as [R] of each trajectory of each rank, in the order of its plan."""
    each = np.split(flat, np.cumsum(batch.loss_tokens)[:-1])  # an episode's trajectories are side by side
    return [[each[index] for index in plan.samples] for plan in batch.plans]


def _baselines(groups: Sequence[GroupSummary]) -> Floats | None:
    """[episodes], the reward of each one's greedy answer; None without such answers."""
    baselines = [group.baseline for group in groups if group.baseline is not None]
    if not baselines:
        return None
    return np.repeat(np.array(baselines, np.float32), [len(group.rewards) for group in groups])


def gather(batch: StepBatch, parts: Sequence[Sequence[Floats]]) -> Floats:
    """[all tokens in the loss] from what each rank computed for its trajectories, in the order of its plan."""
    return np.concatenate(batch.of_each(parts))
