"""Who computes which sample, and in which pass. Pure, and decided once a step by the controller.

A minibatch is one optimizer step. Its samples are spread over the ranks so that all finish together, and each rank's
share is cut into as few micro-batches of at most `token_budget` tokens as it needs, all about as full. Every rank gets
equally many, because each pass is a collective (FSDP gathers weights in it); one with nothing left to do gets an empty
one.

    lengths [9 8 3 2 2], 2 ranks, 12 tokens a pass:
      rank 0: 9 + 2 + 2 -> passes (9) (2 2)
      rank 1: 8 + 3     -> passes (8) (3), for rank 0 needs two
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class RankPlan:
    """One rank's part of a step: minibatches, each of micro-batches, each of sample indices into the step."""

    minibatches: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def samples(self) -> list[int]:
        """Every sample of this rank, in the order of its passes."""
        return [sample for minibatch in self.minibatches for micro_batch in minibatch for sample in micro_batch]


def plan_step(
    lengths: Sequence[int], minibatches: Sequence[Sequence[int]], ranks: int, token_budget: int
) -> list[RankPlan]:
    """Plan one step.

    lengths: tokens of each sample, prompt included.
    minibatches: sample indices of each optimizer step.
    token_budget: most tokens of one pass of one rank; a single longer sample makes a pass of its own.
    Returns one plan for each rank.
    """
    planned = [_plan_minibatch(lengths, minibatch, ranks, token_budget) for minibatch in minibatches]
    return [RankPlan(tuple(minibatch[rank] for minibatch in planned)) for rank in range(ranks)]


def plan_units(
    lengths: Sequence[int], minibatches: Sequence[Sequence[Sequence[int]]], ranks: int, token_budget: int
) -> list[RankPlan]:
    """As plan_step, of units of samples that stay together, in their order, in one pass of one rank."""
    units = [unit for minibatch in minibatches for unit in minibatch]
    ends = list(accumulate(map(len, minibatches), initial=0))
    parts = [range(first, last) for first, last in pairwise(ends)]
    plans = plan_step([sum(lengths[each] for each in unit) for unit in units], parts, ranks, token_budget)
    return [
        RankPlan(tuple(tuple(_members(units, part) for part in minibatch) for minibatch in plan.minibatches))
        for plan in plans
    ]


def _members(units: Sequence[Sequence[int]], chosen: Sequence[int]) -> tuple[int, ...]:
    return tuple(sample for unit in chosen for sample in units[unit])


def _plan_minibatch(
    lengths: Sequence[int], samples: Sequence[int], ranks: int, token_budget: int
) -> list[tuple[tuple[int, ...], ...]]:
    shares = _spread(lengths, samples, ranks)
    count = max(len(_fill(lengths, share, token_budget)) for share in shares)
    return [_cut(lengths, share, count, token_budget) for share in shares]


def _spread(lengths: Sequence[int], samples: Sequence[int], ranks: int) -> list[list[int]]:
    """Longest first, each to the rank with the fewest tokens so far (Graham's LPT rule)."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for sample in _longest_first(lengths, samples):
        rank = loads.index(min(loads))
        shares[rank].append(sample)
        loads[rank] += lengths[sample]
    return shares


def _fill(lengths: Sequence[int], share: Sequence[int], tokens: int) -> list[list[int]]:
    """Passes of at most `tokens`, in the share's order: neighbours have similar lengths, which keeps padded attention
    (on a CPU) tight.
    """
    passes: list[list[int]] = [[]]
    load = 0
    for sample in share:
        if passes[-1] and load + lengths[sample] > tokens:
            passes.append([])
            load = 0
        passes[-1].append(sample)
        load += lengths[sample]
    return passes


def _cut(lengths: Sequence[int], share: Sequence[int], count: int, token_budget: int) -> tuple[tuple[int, ...], ...]:
    """`count` passes of which the fullest is as small as can be: that takes less memory, and less time on a CPU."""
    tokens = bisect_left(range(token_budget), True, key=lambda most: len(_fill(lengths, share, most)) <= count)
    passes = _fill(lengths, share, tokens)
    passes += [[] for _ in range(count - len(passes))]
    return tuple(tuple(samples) for samples in passes)


def _longest_first(lengths: Sequence[int], samples: Sequence[int]) -> list[int]:
    return sorted(samples, key=lambda sample: (-lengths[sample], sample))
