"""Only the best and the worst episode of a group learn: the pair of a preference loss."""

import numpy as np
from numpy.typing import NDArray

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.types import Floats

Indexes = NDArray[np.int64]


def best_worst(batch: AdvantageBatch) -> Floats:
    """A_i = 1 for the group's best episode, -1 for its worst, 0 for the others.

    A group whose rewards are all equal makes no pair, and episodes without a token in the loss are left out. Of equal
    rewards the first counts. A KL penalty does not change the order.

    Use it with the loss dpo, whose pairs these are.

    Guo et al. 2024, Direct Language Model Alignment from Online AI Feedback: https://arxiv.org/abs/2402.04792
    """
    advantages = np.zeros(batch.rewards.size)
    for best, worst in pairs(batch.rewards, batch.groups, batch.lengths):
        advantages[best], advantages[worst] = 1, -1
    return batch.spread(advantages)


def pairs(rewards: Floats, groups: Indexes, lengths: Indexes) -> list[tuple[int, int]]:
    """The best and the worst episode of each group that has both, in the order of the groups; shapes as above."""
    found = []
    for group in np.unique(groups):
        members = np.flatnonzero((groups == group) & (lengths > 0))
        if members.size and (own := rewards[members]).max() > own.min():
            found.append((int(members[own.argmax()]), int(members[own.argmin()])))
    return found
