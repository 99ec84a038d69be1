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

    def __add__(self, other: "BatchTotals") -> "BatchTotals":
        """The counts of two minibatches as one."""
        tokens, trajectories = self.tokens + other.tokens, self.trajectories + other.trajectories
        return BatchTotals(tokens, trajectories, self.positive_tokens + other.positive_tokens)
