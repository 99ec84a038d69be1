"""How often an episode beats those of its group: a preference instead of a reward."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.types import Floats


def win_rate(batch: AdvantageBatch) -> Floats:
    """A_i = P_i - 1/2, with P_i the share of the group's n - 1 others with a lower score; an equal one counts half.

    So A lies between -1/2 and 1/2 whatever the rewards' scale; 0 in a group of one. s_i is the reward minus the
    episode's summed KL penalty.

    Use it with the loss sppo, or if of a reward only the order within a prompt counts.

    Wu et al. 2024, Self-Play Preference Optimization, section 4: https://arxiv.org/abs/2405.00675
    """
    scores, advantages = batch.scores(), np.zeros(batch.rewards.size)
    for group in np.unique(batch.groups):
        members = np.flatnonzero(batch.groups == group)
        if members.size > 1:
            beaten = np.sign(scores[members][:, None] - scores[members]).sum(axis=1)  # wins minus losses
            advantages[members] = beaten / (2 * (members.size - 1))
    return batch.spread(advantages)
