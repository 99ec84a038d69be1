"""Groups without a learning signal, which dynamic sampling skips."""

import numpy as np

from rljob_trainer.advantage.batch import Indexes, require_finite_rewards
from rljob_trainer.types import Floats


def uninformative_groups(rewards: Floats, groups: Indexes) -> Indexes:
    """The groups, ascending, with equal rewards (or one episode): their advantage and gradient are 0.

    rewards, groups: [N], as in AdvantageBatch, without KL penalties. Raises RewardError for a non-finite reward.

    Yu et al. 2025, DAPO, section 3.2: https://arxiv.org/abs/2503.14476
    """
    require_finite_rewards(rewards, groups)
    names, first, member = np.unique(groups, return_index=True, return_inverse=True)
    differs = np.bincount(member, weights=rewards != rewards[first][member])
    equal: Indexes = names[differs == 0]
    return equal
