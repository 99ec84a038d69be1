"""ReMax: the reward of a greedy answer to the same prompt is the baseline. No groups."""

from dataclasses import replace

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch
from rljob_trainer.advantage.reinforce_plus_plus import discounted_returns
from rljob_trainer.types import Floats


def remax(batch: AdvantageBatch) -> Floats:
    """A_t = G_t - b, with G_t the sum of token rewards from t on and b the reward of the prompt's greedy answer.

    The token reward is minus the token's KL penalty, plus the outcome reward for the last token. Each prompt costs one
    more answer, at temperature 0, which is scored and journaled, but not trained on. A batch without is a ValueError.

    Use it with one response a prompt and no critic; with several, rloo's baseline costs no answer more.

    Li et al. 2023, ReMax, algorithm 1: https://arxiv.org/abs/2310.10505
    """
    if batch.baselines is None:
        raise ValueError("remax needs the rewards of greedy answers")
    returns = discounted_returns(replace(batch, gamma=1.0))
    return (returns - np.repeat(batch.baselines, batch.lengths)).astype(np.float32)
