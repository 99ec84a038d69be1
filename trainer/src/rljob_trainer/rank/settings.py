"""The settings of one rank. Light: the driver imports it."""

from dataclasses import dataclass
from typing import Literal

from rljob_trainer.rank.parallel import ParallelDims


@dataclass(frozen=True, slots=True)
class RankSettings:
    """How one rank is built.

    rank: its number. parallel: how the ranks share the work, and how many there are.
    sync_groups: the ranks that send weights together, each list for the engines it feeds.
    threads: of one rank on a CPU.
    collective_seconds: deadline of every collective.
    """

    rank: int
    parallel: ParallelDims
    device_type: Literal["cpu", "cuda"]
    sync_groups: tuple[tuple[int, ...], ...]
    threads: int
    collective_seconds: float

    @property
    def world(self) -> int:
        """All ranks."""
        return self.parallel.world
