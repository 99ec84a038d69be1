"""Step-wise advantages: turns are compared with turns, each by the rewards that come after it.

episode 0   r = 0 0 1   returns with gamma 0.5   0.25 0.5 1
episode 1   r = 0 0                              0    0
per_step    (0.25, 0) are a group, (0.5, 0) are one, and (1) is one
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from rljob_trainer.advantage.batch import AdvantageBatch, Doubles, Indexes
from rljob_trainer.types import Floats


def per_step(batch: AdvantageBatch) -> AdvantageBatch:
    """The turns of `batch` as episodes of one turn: those with the same number in episodes of a task are a group.

    The reward of turn t is its return, R_t = r_t + gamma R_{t+1}, with the discount of turns gamma. Every estimator of
    groups then compares it with the same turn of other episodes; a turn that no other episode reached gets what the
    estimator gives a group of one. With the alternative, `broadcast`, all turns have the advantage of their episode.

    rLLM's stepwise_advantage.mode per_step: https://github.com/rllm-org/rllm
    """
    return _of_turns(batch, batch.known_turns().order)


def by_state(batch: AdvantageBatch) -> AdvantageBatch:
    """As per_step, but turns with the same state in episodes of a task are a group."""
    return _of_turns(batch, batch.known_turns().states)


def returns(batch: AdvantageBatch) -> Doubles:
    """[M]: R_t = r_t + gamma R_{t+1} of each turn, where t + 1 is the turn that was taken next.

    Token penalties of later turns are subtracted from their rewards; `AdvantageBatch.scores` subtracts the turn's own.
    """
    turns = batch.known_turns()
    sums: Doubles = turns.rewards.astype(np.float64)
    penalties: Doubles = np.zeros_like(sums)
    if batch.token_penalties is not None:
        owners = np.repeat(np.arange(sums.size), turns.lengths)
        penalties += np.bincount(owners, weights=batch.token_penalties, minlength=sums.size)
    for turn, following in reversed(list(pairwise(np.lexsort((turns.order, turns.owners))))):
        if turns.owners[turn] == turns.owners[following]:
            sums[turn] += batch.gamma * (sums[following] - penalties[following])
    return sums


def _of_turns(batch: AdvantageBatch, keys: Indexes) -> AdvantageBatch:
    turns = batch.known_turns()
    pairs = np.stack([batch.groups[turns.owners], keys])
    groups: Indexes = np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
    rewards: Floats = returns(batch).astype(np.float32)
    return replace(batch, rewards=rewards, groups=groups, lengths=turns.lengths, baselines=None, turns=None)
