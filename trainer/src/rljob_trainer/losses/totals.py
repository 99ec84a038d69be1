"""Denominators of a minibatch's losses. Light: the driver imports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Counts over the whole minibatch, all ranks and micro-batches.

    tokens: tokens that count in the loss. trajectories: trajectories with at least one such token.
    positive_tokens: those of episodes with a reward above 0.
    """

    tokens: int
    trajectories: int
    positive_tokens: int = 0
