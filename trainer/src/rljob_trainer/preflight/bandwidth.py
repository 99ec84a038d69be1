"""Algorithm and bus bandwidth, as nccl-tests defines them in doc/PERFORMANCE.md. Light: no torch.

    algorithm bandwidth = S / t
    bus bandwidth       = S / t x factor

S is the size in bytes of the largest buffer of a rank: of the whole array in all-gather and reduce-scatter. The factor
makes the number independent of the number of ranks n, so that it compares with the speed of the slowest link:

    all-reduce                    2 (n - 1) / n
    all-gather, reduce-scatter      (n - 1) / n
    send and receive              1
"""

from dataclasses import dataclass
from enum import StrEnum

GIGA = 1e9
"""Bytes of a GB in GB/s."""


class Operation(StrEnum):
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    RING = "sendrecv_ring"  # each rank sends to the next one and receives from the one before
    PAIR = "sendrecv_pair"  # each rank sends to its partner and receives from it


COLLECTIVES = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER, Operation.RING)

IN_PLACE = frozenset({Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER})
"""Operations that have an in-place form; nccl-tests does not check sendrecv in place either."""


@dataclass(frozen=True, slots=True)
class Speed:
    """seconds: of one operation. algorithm, bus: GB/s. wrong: elements that differ from what they should be."""

    seconds: float
    algorithm: float
    bus: float
    wrong: int = 0


def bus_factor(operation: Operation, ranks: int) -> float:
    if operation is Operation.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if operation in (Operation.ALL_GATHER, Operation.REDUCE_SCATTER):
        return (ranks - 1) / ranks
    return 1.0


def speed(operation: Operation, nbytes: int, seconds: float, ranks: int, wrong: int = 0) -> Speed:
    """nbytes: S above."""
    algorithm = nbytes / seconds / GIGA
    return Speed(seconds, algorithm, algorithm * bus_factor(operation, ranks), wrong)
