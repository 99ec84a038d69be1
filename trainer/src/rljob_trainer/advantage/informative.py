"""Which groups teach nothing: what dynamic sampling leaves out."""

import numpy as np

from rljob_trainer.advantage.batch import Indexes, require_finite_rewards
from rljob_trainer.types import Floats


def uninformative_groups(rewards: Floats, groups: Indexes) -> Indexes:
    """The groups, ascending, whose rewards are all equal: their advantage is 0, and so is their gradient.

    rewards, groups: [N], as in AdvantageBatch: outcome rewards alone, without KL penalties. A group of one is among
    them. Raises RewardError for a reward that is not finite.

    Yu et al. 2025, DAPO, section 3.2: https://arxiv.org/abs/2503.14476
    """
    require_finite_rewards(rewards, groups)
    names, first, member = np.unique(groups, return_index=True, return_inverse=True)
    differs = np.bincount(member, weights=rewards != rewards[first][member])
    equal: Indexes = names[differs == 0]
    return equal
