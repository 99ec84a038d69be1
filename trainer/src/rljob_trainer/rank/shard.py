"""One rank's samples of one step, and what has been computed about each so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.packing import on_device
from rljob_trainer.rank.plan import RankPlan
from rljob_trainer.types import Bools, Floats, Group, Ids, Trajectory

N = TypeVar("N", bound=np.generic)

Column = Literal[
    "engine_log_probs", "old_log_probs", "current_log_probs", "reference_log_probs", "teacher_log_probs", "teacher_ids",
    "advantages", "values", "returns", "mask", "weights", "chosen",
]  # fmt: skip


@dataclass(slots=True)
class ShardSample:
    """One trajectory of this rank, with R tokens in the loss.

    engine_log_probs: [R], by the engine that sampled them; None in a supervised row.
    old_log_probs: [R], by this policy at the start of the step; None until they are needed.
    current_log_probs: [R], by the policy before the present minibatch; None unless a correction needs them.
    reference_log_probs: [R], by the reference; None without one.
    teacher_log_probs: [R], by the teacher; None without one. With teacher.topK [R, K], of the tokens teacher_ids.
    teacher_ids: [R, K], the tokens that the teacher finds likeliest; None without teacher.topK.
    advantages: [R]; None until they are known.
    values: [R], by the critic at the start of the step; None without one. returns: [R], what it learns.
    mask: [R], whether the token still counts in the loss (masking.py); None if all do.
    weights: [R], importance weights of the loss (correcting.py); None if all are 1.
    chosen: [R], whether the loss treats the token apart (choosing.py); None if it knows no such tokens.
    group: number of the group that it belongs to, or of the supervised row; with pairs, of the pair.
    positive: whether the reward of its episode is above 0.
    loss_tokens: R.
    """

    trajectory: Trajectory
    engine_log_probs: Floats | None = None
    old_log_probs: Floats | None = None
    current_log_probs: Floats | None = None
    reference_log_probs: Floats | None = None
    teacher_log_probs: Floats | None = None
    teacher_ids: Ids | None = None
    advantages: Floats | None = None
    values: Floats | None = None
    returns: Floats | None = None
    mask: Bools | None = None
    weights: Floats | None = None
    chosen: Bools | None = None
    positive: bool = False
    group: int = 0
    loss_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.loss_tokens = self.trajectory.loss_tokens

    @property
    def remaining(self) -> int:
        """Tokens that count in the loss."""
        return self.loss_tokens if self.mask is None else int(self.mask.sum())


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's plan with its samples in place of their indices.

    totals: of each minibatch, over all ranks.
    """

    plan: RankPlan
    totals: tuple[BatchTotals, ...]
    samples: dict[int, ShardSample] = field(repr=False)

    @property
    def ordered(self) -> list[ShardSample]:
        """Every sample of this rank, in the order of RankPlan.samples."""
        return [self.samples[index] for index in self.plan.samples]

    def micro_batches(self) -> Iterator[list[ShardSample]]:
        """The samples of each pass through all minibatches; an empty list for an idle pass."""
        for minibatch in self.plan.minibatches:
            yield from self.passes(minibatch)

    def passes(self, minibatch: tuple[tuple[int, ...], ...]) -> Iterator[list[ShardSample]]:
        for micro_batch in minibatch:
            yield [self.samples[index] for index in micro_batch]


def shard_of_groups(plan: RankPlan, totals: Sequence[BatchTotals], groups: Sequence[Group]) -> Shard:
    """The rank's part of a rollout; sample indices count trajectories through groups and their episodes."""
    wanted = set(plan.samples)
    episodes = ((number, episode) for number, group in enumerate(groups) for episode in group.episodes)
    every = enumerate((each, episode.reward, number) for number, episode in episodes for each in episode.trajectories)
    samples = {
        index: ShardSample(
            each,
            each.log_probs[each.in_loss],
            teacher_log_probs=each.taught.log_probs if each.taught is not None else None,
            teacher_ids=each.taught.ids if each.taught is not None else None,
            positive=reward > 0,
            group=number,
        )
        for index, (each, reward, number) in every
        if index in wanted
    }
    return Shard(plan, tuple(totals), samples)


def shard_of_rows(plan: RankPlan, totals: Sequence[BatchTotals], rows: Sequence[Trajectory]) -> Shard:
    """The rank's part of a supervised batch."""
    return Shard(plan, tuple(totals), {index: ShardSample(rows[index], group=index) for index in plan.samples})


def shard_of_pairs(plan: RankPlan, totals: Sequence[BatchTotals], rows: Sequence[Trajectory]) -> Shard:
    """The rank's part of a batch of pairs. rows: a preferred response, its rejected one, the next pair, ..."""
    samples = {index: ShardSample(rows[index], group=index // 2) for index in plan.samples}
    for index, sample in samples.items():
        sample.advantages = np.full(sample.loss_tokens, -1 if index % 2 else 1, np.float32)
    return Shard(plan, tuple(totals), samples)


def column(samples: Sequence[ShardSample], name: Column) -> Tensor:
    """One attribute of the samples, flat [sum of R], on the host. All of them have it."""
    parts = [getattr(sample, name) for sample in samples]
    return torch.from_numpy(np.concatenate(parts or [np.zeros(0, np.float32)]))


def column_if_known(samples: Sequence[ShardSample], name: Column, device: torch.device) -> Tensor | None:
    """One attribute of the samples, flat [sum of R], on the device; None if the samples lack it."""
    known = getattr(samples[0], name) is not None
    return on_device(column(samples, name), device) if known else None


def within(samples: Sequence[ShardSample], vocabulary: int) -> None:
    """Leave out tokens of the teacher that the policy has no row for: they count as the rest of the vocabulary."""
    for sample in samples:
        if sample.teacher_ids is not None and sample.teacher_log_probs is not None:
            known = sample.teacher_ids < vocabulary
            sample.teacher_ids = np.where(known, sample.teacher_ids, 0)
            sample.teacher_log_probs = np.where(known, sample.teacher_log_probs, -np.inf).astype(np.float32)


def scatter(samples: Sequence[ShardSample], name: Column, flat: Tensor) -> None:
    """Set one attribute of the samples from flat [sum of R]."""
    for sample, part in zip(samples, split(flat.float().cpu().numpy(), samples), strict=True):
        setattr(sample, name, part)


def split(flat: NDArray[N], samples: Sequence[ShardSample]) -> list[NDArray[N]]:
    """Flat [sum of R] as [R] of each sample."""
    return np.split(flat, np.cumsum(loss_tokens(samples))[:-1]) if samples else []


def loss_tokens(samples: Sequence[ShardSample]) -> NDArray[np.int64]:
    """R of each sample, [n]."""
    return np.array([sample.loss_tokens for sample in samples], np.int64)
