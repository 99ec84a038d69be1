"""MaxRL: distance from the group's mean, in units of the mean, which follows the likelihood of success."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats


def maxrl(batch: AdvantageBatch) -> Floats:
    """A_i = (s_i - mean(s)) / mean(s) over the group, 0 if the mean is not above 0; the same for every token.

    s_i is the reward minus the episode's summed KL penalty. Rewards are 0 or 1, or at least not negative.

    Use it with many samples a prompt if hard prompts are to count more: a single success among n has the advantage
    n - 1, where GRPO gives about the square root of n.

    Tajwar et al. 2026, Maximum Likelihood Reinforcement Learning: https://arxiv.org/abs/2602.02710
    """
    scores = batch.scores()
    centered = group_statistics(scores, batch.groups).centered
    mean = scores - centered
    return batch.spread(np.divide(centered, mean, out=np.zeros_like(mean), where=mean > MEAN_EPSILON))


MEAN_EPSILON = 1e-6
"""Means up to it count as 0: rounding leaves such ones of scores that cancel."""
