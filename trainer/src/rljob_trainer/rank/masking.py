"""Which tokens in the loss count, decided before anything is divided by their number.

prepare:  old log-probabilities ──> rejection, sample by sample ──> counts of what remains, summed over all ranks
update:   every loss is a sum over the remaining tokens, divided by those counts

With a bypass of the old log-probabilities, both happen before each minibatch (correcting.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.shard import Shard, ShardSample
from rljob_trainer.types import Bools

Rejection = Callable[[ShardSample], Bools]
"""[R] of a sample that has log-probabilities of engine and trainer: the tokens that stay in the loss."""


def without_rejected(shard: Shard, rejection: Rejection) -> Shard:
    """The shard with the mask of each sample set, and its totals counted again; collective over all ranks.

    Every rank holds other samples (ParallelDims), so the sum over all ranks counts each once.
    """
    minibatches = [
        [sample for samples in shard.passes(minibatch) for sample in samples] for minibatch in shard.plan.minibatches
    ]
    return replace(shard, totals=reject(minibatches, rejection))


def reject(minibatches: Sequence[Sequence[ShardSample]], rejection: Rejection) -> tuple[BatchTotals, ...]:
    """Set the mask of each sample. Returns what remains of each minibatch over all ranks; collective."""
    for samples in minibatches:
        for sample in samples:
            sample.mask = rejection(sample)
    counts = torch.tensor([_remaining(samples) for samples in minibatches], dtype=torch.int64)
    dist.all_reduce(counts)
    return tuple(BatchTotals(*minibatch) for minibatch in counts.tolist())


def _remaining(samples: Sequence[ShardSample]) -> tuple[int, int, int]:
    """Of this rank, as BatchTotals: tokens, trajectories with at least one, and tokens of positive episodes."""
    counts = [(sample.remaining, sample.positive) for sample in samples]
    positive = sum(count for count, positive in counts if positive)
    return sum(count for count, _ in counts), sum(count > 0 for count, _ in counts), positive
