"""Who computes which sample, and in which pass. Pure, and decided once a step by the controller.

A minibatch is one optimizer step. Its samples are spread over the ranks so that all finish together, and each rank's
share is cut into micro-batches of at most `token_budget` tokens. Every rank gets equally many micro-batches, because
each pass is a collective (FSDP gathers weights in it); a rank with nothing left to do gets an empty one.

    lengths [9 8 3 2 2], 2 ranks, 12 tokens a pass:
      rank 0: 9 + 2 + 2 -> passes (9 2) (2)
      rank 1: 8 + 3     -> passes (8) (3), for rank 0 needs two
"""

from collections.abc import Sequence
from dataclasses import dataclass


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


def _plan_minibatch(
    lengths: Sequence[int], samples: Sequence[int], ranks: int, token_budget: int
) -> list[tuple[tuple[int, ...], ...]]:
    shares = [_pack(lengths, share, token_budget) for share in _spread(lengths, samples, ranks)]
    passes = max(len(share) for share in shares)
    return [_stretch(share, passes) for share in shares]


def _spread(lengths: Sequence[int], samples: Sequence[int], ranks: int) -> list[list[int]]:
    """Longest first, each to the rank with the fewest tokens so far (Graham's LPT rule)."""
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for sample in _longest_first(lengths, samples):
        rank = loads.index(min(loads))
        shares[rank].append(sample)
        loads[rank] += lengths[sample]
    return shares


def _pack(lengths: Sequence[int], samples: Sequence[int], token_budget: int) -> list[list[int]]:
    """First-fit decreasing: neighbours have similar lengths, which keeps padded attention (on a CPU) tight."""
    passes: list[list[int]] = []
    loads: list[int] = []
    for sample in _longest_first(lengths, samples):
        fit = next((i for i, load in enumerate(loads) if load + lengths[sample] <= token_budget), None)
        if fit is None:
            passes.append([sample])
            loads.append(lengths[sample])
        else:
            passes[fit].append(sample)
            loads[fit] += lengths[sample]
    return passes or [[]]


def _stretch(passes: list[list[int]], count: int) -> tuple[tuple[int, ...], ...]:
    """The same samples in `count` passes: the fullest is halved until there are enough, or nothing is left to halve."""
    passes = [list(samples) for samples in passes]
    while len(passes) < count and len(fullest := max(passes, key=len)) > 1:
        half = len(fullest) // 2
        passes.append(fullest[half:])
        del fullest[half:]
    passes += [[] for _ in range(count - len(passes))]
    return tuple(tuple(samples) for samples in passes)


def _longest_first(lengths: Sequence[int], samples: Sequence[int]) -> list[int]:
    return sorted(samples, key=lambda sample: (-lengths[sample], sample))
