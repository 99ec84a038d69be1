"""Pass@k: only the best episode of a group learns, by its lead over the second best."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.grpo import STD_EPSILON
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats


def grpo_passk(batch: AdvantageBatch) -> Floats:
    """A_i = (s_i - second(s)) / (std(s) + 1e-6) for the group's best episode, 0 for the others.

    second: the second-highest score. So a group whose best score occurs twice gives 0, and so does a group of one.
    s_i is the reward minus the episode's summed KL penalty; std divides by size - 1.

    Use it if one right answer among many samples is the goal, and the mean reward is not.

    Tang et al. 2025, Optimizing Language Models for Inference Time Objectives: https://arxiv.org/abs/2503.19595
    """
    scores = batch.scores()
    std = group_statistics(scores, batch.groups).std
    advantages = np.zeros(scores.size)
    for group in np.unique(batch.groups):
        members = np.flatnonzero(batch.groups == group)
        if members.size > 1:
            *_, second, best = members[np.argsort(scores[members], kind="stable")]
            advantages[best] = (scores[best] - scores[second]) / (std[best] + STD_EPSILON)
    return batch.spread(advantages)
