"""Statistics of groups and of all tokens, in float64.

A float32 sum over a million tokens loses five digits. In float64 the mean of equal float32 rewards is exact, so that a
group with equal rewards gets exactly 0.
"""

from dataclasses import dataclass

import numpy as np

from rljob_trainer.advantage.batch import Doubles, Indexes

WHITENING_EPSILON = 1e-8
"""Added to the variance, so that equal returns give 0 instead of 0/0. It changes an advantage by half a percent if the
standard deviation of the returns is 1e-3. verl and OpenRLHF use the same value."""


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Statistics of each episode's group, [N] each.

    centered: the score minus its group's mean; exactly 0 in a group with equal rewards and no penalties.
    std: sample standard deviation (divided by size - 1); 0 for a group of one.
    size: episodes in the group.
    """

    centered: Doubles
    std: Doubles
    size: Indexes


def group_statistics(scores: Doubles, groups: Indexes) -> GroupStatistics:
    _, member = np.unique(groups, return_inverse=True)
    size = np.bincount(member)
    centered = scores - (np.bincount(member, weights=scores) / size)[member]
    squares = np.bincount(member, weights=centered**2)
    std = np.sqrt(squares / np.maximum(size - 1, 1))
    return GroupStatistics(centered, std[member], size[member].astype(np.int64))


def whiten(values: Doubles) -> Doubles:
    """(x - mean) / sqrt(var + epsilon) over all of [T], with the population variance; exactly 0 if all are equal."""
    if not values.size:
        return values
    centered: Doubles = values - values.mean()
    whitened: Doubles = centered / np.sqrt((centered**2).mean() + WHITENING_EPSILON)
    return whitened
