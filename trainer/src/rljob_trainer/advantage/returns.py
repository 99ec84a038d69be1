"""Rewards of tokens, and their discounted sums: all episodes at once, from last token to first."""

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch, Doubles, Indexes


def token_rewards(batch: AdvantageBatch) -> Doubles:
    """[sum(lengths)]: each token's own reward minus its penalty, plus the reward of each turn at the turn's last token.

    An episode's outcome reward belongs to its last turn.
    """
    rewards = np.zeros(batch.tokens) if batch.token_rewards is None else batch.token_rewards.astype(np.float64)
    if batch.token_penalties is not None:
        rewards -= batch.token_penalties
    turns = batch.known_turns()
    some = turns.lengths > 0  # a turn without tokens has no last token for its reward
    rewards[np.cumsum(turns.lengths)[some] - 1] += turns.rewards[some]
    return rewards


def discounted(values: Doubles, lengths: Indexes, factor: float | Doubles) -> Doubles:
    """S_t = x_t + factor S_{t+1} within each episode, [sum(lengths)]. values: x, of the same shape.

    factor: of all episodes, or [N].
    """
    last, sums, factors = np.cumsum(lengths) - 1, values.copy(), np.broadcast_to(factor, lengths.shape)
    for distance in range(1, int(lengths.max(initial=0))):
        longer = lengths > distance
        token = last[longer] - distance
        sums[token] += factors[longer] * sums[token + 1]
    return sums
