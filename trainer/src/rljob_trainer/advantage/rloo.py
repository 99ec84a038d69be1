"""RLOO: each episode against the mean of its siblings, a baseline that does not depend on the episode itself."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats


def rloo(batch: AdvantageBatch) -> Floats:
    """A_i = s_i - mean of s_j over the group's n - 1 others, the same for every token of episode i.

    s_i is the reward less the summed KL penalty of the episode. Computed as (s_i - mean(s)) n / (n - 1), its equal; 0
    in a group of one, which has no others.

    Ahmadian et al. 2024, Back to Basics, section 3.4: https://arxiv.org/abs/2402.14740
    """
    group = group_statistics(batch.scores(), batch.groups)
    return batch.spread(group.centered * group.size / np.maximum(group.size - 1, 1))
