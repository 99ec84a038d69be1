"""What one rank is told when it is made. Light: the driver imports it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RankSettings:
    """rank, world: of all ranks. sync_groups: the ranks that send weights together, each list for the engines it feeds.

    threads: of one rank on a CPU. collective_seconds: deadline of every collective.
    """

    rank: int
    world: int
    device_type: Literal["cpu", "cuda"]
    sync_groups: tuple[tuple[int, ...], ...]
    threads: int
    collective_seconds: float
