"""OPO: the baseline that minimizes the variance of the gradient, a mean weighted by length."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.types import Floats


def opo(batch: AdvantageBatch) -> Floats:
    """A_i = s_i - sum(l s) / sum(l) over the group, the same for every token of episode i; l: its tokens in the loss.

    s_i is the reward minus the episode's summed KL penalty. 0 in a group of one.

    l stands for the squared norm of the episode's gradient. An episode without tokens in the loss (mask of
    environment.onOverflow or onTruncated) has no gradient, so its reward is not in the baseline, as in verl.

    Use it with one update a step and no KL, as its paper does, if lengths in a group differ much.

    Hao et al. 2025, On-Policy RL with Optimal Reward Baseline: https://arxiv.org/abs/2505.23585
    """
    scores = batch.scores()
    _, member = np.unique(batch.groups, return_inverse=True)
    tokens = np.bincount(member, weights=batch.lengths)
    centered = scores - (np.bincount(member, weights=scores) / np.bincount(member))[member]  # exact for equal scores
    shift = np.bincount(member, weights=centered * batch.lengths) / np.maximum(tokens, 1)
    return batch.spread(centered - shift[member])
