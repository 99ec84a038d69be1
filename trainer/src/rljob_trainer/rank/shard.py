"""One rank's samples of one step, and what has been computed about each so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.old_types import Floats, Group
from rljob_trainer.rank.packing import PackedBatch, pack
from rljob_trainer.rank.plan import RankPlan
from rljob_trainer.rank.sequence import TokenSequence

Column = Literal["engine_log_probs", "old_log_probs", "reference_log_probs", "advantages"]


@dataclass(slots=True)
class ShardSample:
    """One sample of this rank.

    engine_log_probs: [R], by the engine that sampled it; None for supervised targets.
    old_log_probs: [R], by this policy at the start of the step; None until somebody needs them.
    reference_log_probs: [R], by the reference; None without one.
    advantages: [R]; None until they are known.
    """

    sequence: TokenSequence
    engine_log_probs: Floats | None = None
    old_log_probs: Floats | None = None
    reference_log_probs: Floats | None = None
    advantages: Floats | None = None


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
    """The rank's part of a rollout; sample indices count through the groups, responses to one prompt side by side."""
    wanted = set(plan.samples)
    samples: dict[int, ShardSample] = {}
    every = ((group.prompt, sample) for group in groups for sample in group.samples)
    for index, (prompt, sample) in enumerate(every):
        if index in wanted:
            ids = np.concatenate([prompt.token_ids, sample.token_ids])
            samples[index] = ShardSample(TokenSequence(ids, len(prompt.token_ids)), sample.log_probs)
    return Shard(plan, tuple(totals), samples)


def shard_of_sequences(plan: RankPlan, totals: Sequence[BatchTotals], sequences: Sequence[TokenSequence]) -> Shard:
    """The rank's part of a supervised batch."""
    return Shard(plan, tuple(totals), {index: ShardSample(sequences[index]) for index in plan.samples})


def packed(samples: Sequence[ShardSample], device: torch.device, *, share: bool) -> PackedBatch:
    return pack([sample.sequence for sample in samples], device, share=share)


def column(samples: Sequence[ShardSample], name: Column) -> Tensor:
    """One attribute of the samples, flat [sum of R], float32, on the host."""
    parts = [getattr(sample, name) for sample in samples]
    return torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *parts]))


def scatter(samples: Sequence[ShardSample], name: Column, flat: Tensor) -> None:
    """Set one attribute of the samples from flat [sum of R]."""
    ends = np.cumsum(response_lengths(samples))
    for sample, part in zip(samples, np.split(flat.float().cpu().numpy(), ends[:-1]), strict=True):
        setattr(sample, name, part)


def response_lengths(samples: Sequence[ShardSample]) -> NDArray[np.int64]:
    """R of each sample, [n]."""
    return np.array([sample.sequence.response_tokens for sample in samples], np.int64)
