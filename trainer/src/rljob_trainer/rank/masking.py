"""Which tokens in the loss count, decided before anything is divided by their number.

prepare:  old log-probabilities ──> rejection, token by token ──> counts of what remains, summed over all ranks
update:   every loss is a sum over the remaining tokens, divided by those counts
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.shard import Shard, ShardSample
from rljob_trainer.types import Bools

Rejection = Callable[[ShardSample], Bools]
"""[R] of a sample that has engine and old log-probabilities: the tokens that stay in the loss."""


def without_rejected(shard: Shard, rejection: Rejection) -> Shard:
    """The shard with the mask of each sample set, and its totals counted again; collective over all ranks.

    Every rank holds other samples (ParallelDims), so the sum over all ranks counts each once.
    """
    for sample in shard.ordered:
        sample.mask = rejection(sample)
    return recounted(shard)


def recounted(shard: Shard) -> Shard:
    """The shard with totals of what the masks leave; collective over all ranks."""
    counts = torch.tensor([_remaining(shard, minibatch) for minibatch in shard.plan.minibatches], dtype=torch.int64)
    dist.all_reduce(counts)
    return replace(shard, totals=tuple(BatchTotals(*minibatch) for minibatch in counts.tolist()))


def _remaining(shard: Shard, minibatch: tuple[tuple[int, ...], ...]) -> tuple[int, int, int]:
    """Of this rank, as BatchTotals: tokens, trajectories with at least one, and tokens of positive episodes."""
    counts = [(sample.remaining, sample.positive) for samples in shard.passes(minibatch) for sample in samples]
    positive = sum(count for count, positive in counts if positive)
    return sum(count for count, _ in counts), sum(count > 0 for count, _ in counts), positive
