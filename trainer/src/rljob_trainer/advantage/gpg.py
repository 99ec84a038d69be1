"""GPG: distance from the group's mean, scaled up by the share of groups that teach nothing."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics
from rljob_trainer.types import Floats


def gpg(batch: AdvantageBatch) -> Floats:
    """A_i = alpha (s_i - mean(s)) over the group, with alpha = N / (N - M), the same for every token of episode i.

    N: episodes of the step. M: those in groups whose scores are all equal. So the step's gradient has the size that it
    would have without them. verl counts episodes with a score of 0 as M instead, which depends on where rewards begin.

    Use it with the loss gpg, and without dynamic sampling, which leaves no such groups.

    Chu et al. 2025, Group Policy Gradient: https://arxiv.org/abs/2504.02546
    """
    group = group_statistics(batch.scores(), batch.groups)
    teaching = int(np.count_nonzero(group.std))
    return batch.spread(group.centered * (batch.rewards.size / max(1, teaching)))
