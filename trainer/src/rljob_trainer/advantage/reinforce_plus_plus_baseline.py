"""REINFORCE++ with a baseline: subtract the group's mean, then whiten over the step's tokens."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.statistics import group_statistics, whiten
from rljob_trainer.types import Floats


def reinforce_plus_plus_baseline(batch: AdvantageBatch) -> Floats:
    """A_t = (B_t - mean(B)) / sqrt(var(B) + 1e-8) over all tokens of the step, with B_t = s_i - mean(s) over the group.

    s_i is the reward minus the summed KL penalty of the token's episode i, without discount. The mean over tokens is
    not 0, because long episodes have more tokens.

    Use it if groups are small, so that their own standard deviation is noise.

    Hu et al. 2025, REINFORCE++, section 3: https://arxiv.org/abs/2501.03262
    """
    centered = group_statistics(batch.scores(), batch.groups).centered
    return whiten(np.repeat(centered, batch.lengths)).astype(np.float32)
