"""What is asked of the ranks and what they report. Light: no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal, Protocol

from rljob_trainer.preflight.bandwidth import Operation, Speed
from rljob_trainer.preflight.rounds import Round, Shape

Library = Literal["cupy", "torch"]
"""What moves the data; see fabric.py."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The process of one rank.

    device: "cpu" or "cuda", the first GPU that the process sees.
    largest: bytes of the largest trial.
    seconds: how long it waits for the other ranks to connect.
    """

    rank: int
    shape: Shape
    device: str
    library: Library
    largest: int
    seconds: float


def default_library(device: str) -> Library:
    """cupy's bindings on GPUs, if cupy is installed."""
    return "cupy" if device == "cuda" and find_spec("cupy") is not None else "torch"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank runs.

    host: its node's name, in a cluster the pod's. gpu: name and UUID; None on a CPU. library: with its version.
    """

    rank: int
    host: str
    address: str
    gpu: str | None
    library: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement. nbytes: of the largest buffer of a rank. round: of Operation.PAIR, else None."""

    operation: Operation
    nbytes: int
    in_place: bool = False
    round: Round | None = None


@dataclass(frozen=True, slots=True)
class Wrong:
    """Elements that a rank received wrong. source: the rank that sent them; None for a sum over all ranks."""

    elements: int
    source: int | None


@dataclass(frozen=True, slots=True)
class Timing:
    """One rank's part of a trial. seconds: of one operation; None if the round has no partner for the rank."""

    seconds: float | None
    wrong: tuple[Wrong, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """ecc_corrected, ecc_uncorrected: errors since the driver was loaded. Clocks in MHz. None: the GPU does not say."""

    name: str
    ecc_corrected: int | None
    ecc_uncorrected: int | None
    sm_clock: int | None
    sm_clock_max: int | None
    memory_clock: int | None


@dataclass(frozen=True, slots=True)
class Health:
    """Of the node beside one rank, GB/s. skipped: what could not be measured, and why."""

    rank: int
    memory: float
    disk_write: float | None
    disk_read: float | None
    gpu: Gpu | None
    skipped: tuple[str, ...] = ()


class Members(Protocol):
    """The processes of all ranks. Each call asks all of them, in the order of the ranks.

    seconds: deadline of the answers. Raises Unanswered if some do not answer by then, MemberFailed if one fails.
    """

    def places(self, seconds: float) -> list[Place]:
        """Connect all ranks."""

    def run(self, trial: Trial, warm_ups: int, iterations: int, seconds: float) -> list[Timing]: ...

    def health(self, folder: str | None, seconds: float) -> list[Health]:
        """folder: on the volume whose bandwidth is measured; None leaves that out."""


class MemberFailed(Exception):
    """The process of a rank failed or died."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(f"rank {rank}: {why}")
        self.rank = rank


class Unanswered(Exception):
    """ranks: those that did not answer in time. A collective that hangs does so in several ranks."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(f"no answer from ranks {', '.join(map(str, ranks))}")
        self.ranks = tuple(ranks)


@dataclass(frozen=True, slots=True)
class Row:
    """A collective at one size. in_place: None if the operation has no such form."""

    operation: Operation
    nbytes: int
    out_of_place: Speed
    in_place: Speed | None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two ranks that exchange data in both directions. bus: GB/s in each direction, 0 if they did not finish."""

    ranks: tuple[int, int]
    bus: float
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Suspect:
    """Wrong elements of a collective. observer: the rank that received them. source: as in Wrong."""

    operation: Operation
    nbytes: int
    observer: int
    source: int | None
    elements: int


@dataclass(slots=True)
class Measured:
    """Everything that was measured.

    pair_bytes: size at which pairs were measured.
    left_out: the first size, and pairs_left_out the rounds of pairs, that did not fit into the time; None and 0: none.
    hung: the trial that did not end, if one did not.
    seconds: what the whole took.
    """

    places: list[Place]
    rows: list[Row] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)
    health: list[Health] = field(default_factory=list)
    pair_bytes: int = 0
    left_out: int | None = None
    pairs_left_out: int = 0
    hung: Trial | None = None
    seconds: float = 0.0
