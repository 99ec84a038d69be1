"""REINFORCE++: discounted returns per token, whitened over all tokens of the step. No groups."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch, Doubles
from rljob_trainer.advantage.statistics import whiten
from rljob_trainer.types import Floats


def reinforce_plus_plus(batch: AdvantageBatch) -> Floats:
    """A_t = (G_t - mean(G)) / sqrt(var(G) + 1e-8) over all tokens of the step, with G_t = r_t + gamma G_{t+1}.

    The token reward r_t is minus the token's KL penalty, plus the outcome reward for the last token.

    Use it with one response a prompt, or if rewards of all prompts have one scale.

    Hu et al. 2025, REINFORCE++, section 3: https://arxiv.org/abs/2501.03262
    """
    return whiten(discounted_returns(batch)).astype(np.float32)


def discounted_returns(batch: AdvantageBatch) -> Doubles:
    """G_t of each token, [sum(lengths)]: all episodes at once, from last token to first."""
    some = batch.lengths > 0  # an episode without tokens has no last token for its reward
    last, lengths = (np.cumsum(batch.lengths) - 1)[some], batch.lengths[some]
    returns = np.zeros(batch.tokens)
    if batch.token_penalties is not None:
        returns -= batch.token_penalties
    returns[last] += batch.rewards[some]
    for distance in range(1, int(lengths.max(initial=0))):
        token = last[lengths > distance] - distance
        returns[token] += batch.gamma * returns[token + 1]
    return returns
