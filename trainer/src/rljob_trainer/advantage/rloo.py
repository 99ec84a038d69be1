"""RLOO: an episode's score minus the mean of its group's other episodes."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats


def rloo(batch: AdvantageBatch) -> Floats:
    """A_i = s_i - mean of s_j over the group's n - 1 others, the same for every token of episode i.

    s_i is the reward minus the episode's summed KL penalty. Computed as (s_i - mean(s)) n / (n - 1), which is equal; 0
    in a group of one.

    Use it as dr_grpo; its baseline leaves the response itself out, so that the gradient is unbiased.

    Ahmadian et al. 2024, Back to Basics, section 3.4: https://arxiv.org/abs/2402.14740
    """
    group = group_statistics(batch.scores(), batch.groups)
    return batch.spread(group.centered * group.size / np.maximum(group.size - 1, 1))
