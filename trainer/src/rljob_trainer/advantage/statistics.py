"""Statistics of groups and of all tokens, in float64: a float32 sum over a million tokens loses five digits."""

from dataclasses import dataclass

import numpy as np

from rljob_trainer.advantage.batch import Doubles, Indexes

WHITENING_EPSILON = 1e-8
"""Added to the variance in whitening, so that equal returns give 0 rather than 0/0. Returns must differ by as little
as 1e-3 before it changes an advantage by half a percent. The value of verl and OpenRLHF."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Of each response's group, [N] each.

    centered: the score less its group's mean; exactly 0 where all scores of a group are equal, and for a group of one.
    std: sample standard deviation (divided by size - 1); 0 for a group of one.
    size: responses in the group.
    """

    centered: Doubles
    std: Doubles
    size: Indexes


def group_statistics(scores: Doubles, groups: Indexes) -> GroupStatistics:
    _, first, member = np.unique(groups, return_index=True, return_inverse=True)
    size = np.bincount(member)
    # Relative to one member of the group, equal scores are exactly 0 and stay so: a mean of three 0.1 is not 0.1.
    relative = scores - scores[first][member]
    centered = relative - (np.bincount(member, weights=relative) / size)[member]
    squares = np.bincount(member, weights=centered**2)
    std = np.sqrt(squares / np.maximum(size - 1, 1))
    return GroupStatistics(centered, std[member], size[member].astype(np.int64))


def whiten(values: Doubles) -> Doubles:
    """(x - mean) / sqrt(var + epsilon) over all of [T], with the population variance; exactly 0 if all are equal."""
    relative = values - values[0]
    centered: Doubles = relative - relative.mean()
    whitened: Doubles = centered / np.sqrt((centered**2).mean() + WHITENING_EPSILON)
    return whitened
