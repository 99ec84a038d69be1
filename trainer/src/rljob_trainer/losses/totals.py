"""What the losses of a minibatch are divided by. Light: the driver imports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Sizes of the whole minibatch, over all ranks and micro-batches.

    tokens: tokens that count in the loss. trajectories: those with at least one such token.
    """

    tokens: int
    trajectories: int
