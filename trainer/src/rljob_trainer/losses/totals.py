"""What the losses of a minibatch are divided by. Light: the driver imports it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """Sizes of the whole minibatch, over all ranks and micro-batches.

    tokens: response tokens. responses: responses.
    """

    tokens: int
    responses: int
