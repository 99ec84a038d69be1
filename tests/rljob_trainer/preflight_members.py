"""Members of a fabric for tests: real ones that fail in one place, and ones that only say how fast they are."""

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from rljob_trainer.preflight.bandwidth import GIGA, Operation
from rljob_trainer.preflight.measured import Health, MemberSettings, Place, Timing, Trial, Unanswered
from rljob_trainer.preflight.member import Member
from rljob_trainer.preflight.rounds import Shape


class Flips(Member):
    """A real member. After `operation`, rank 1 flips one bit of the last element that it received."""

    def __init__(self, operation: str, settings: MemberSettings) -> None:
        super().__init__(settings)
        self.operation = operation

    def connect(self, store, address: str) -> Place:
        place = super().connect(store, address)
        if self.rank == 1:
            setattr(self.fabric, self.operation, partial(self._flipped, getattr(self.fabric, self.operation)))
        return place

    def _flipped(self, operate, *arguments) -> None:
        operate(*arguments)
        received = arguments[2] if self.operation == "exchange" else arguments[1]
        received.view(torch.int32)[-1] ^= 1


class Told:
    """Says how fast pairs and collectives are, GB/s. clock: seconds that its trials have taken.

    pairs: {ranks: what each trial finds, the last one for all later ones}; 10 for others.
    hangs: ranks that never answer a trial with a partner.
    """

    def __init__(
        self,
        shape: Shape,
        pairs: Mapping[tuple[int, int], Sequence[float]] | None = None,
        hangs: Sequence[int] = (),
        memory: Sequence[float] = (),
        collective: float = 10.0,
    ) -> None:
        self.shape, self.hangs, self.collective = shape, hangs, collective
        self.pairs = {ranks: list(speeds) for ranks, speeds in (pairs or {}).items()}
        self.memory = memory or [10.0] * shape.ranks
        self.clock = 0.0
        self.asked: list[Trial] = []

    def places(self, seconds: float) -> list[Place]:
        hosts = [f"pod-{self.shape.node_of(rank)}" for rank in range(self.shape.ranks)]
        return [Place(rank, host, "10.0.0.1", None, "told") for rank, host in enumerate(hosts)]

    def run(self, trial: Trial, warm_ups: int, iterations: int, seconds: float) -> list[Timing]:
        self.asked.append(trial)
        if trial.operation is not Operation.PAIR:
            return self._all(trial, warm_ups + iterations, self.collective)
        assert trial.round is not None
        pairs = trial.round.pairs(self.shape)
        if hung := [rank for pair in pairs for rank in pair if {*pair} & {*self.hangs}]:
            raise Unanswered(hung)
        speeds = {rank: speed for pair in pairs for speed in (self._speed(pair),) for rank in pair}
        self.clock += max((trial.nbytes / GIGA / speed for speed in speeds.values()), default=0.0) * iterations
        timings = {rank: trial.nbytes / GIGA / speed for rank, speed in speeds.items()}
        return [Timing(timings.get(rank)) for rank in range(self.shape.ranks)]

    def health(self, folder: str | None, seconds: float) -> list[Health]:
        return [Health(rank, speed, None, None, None) for rank, speed in enumerate(self.memory)]

    def _all(self, trial: Trial, times: int, speed: float) -> list[Timing]:
        seconds = trial.nbytes / GIGA / speed
        self.clock += seconds * times
        return [Timing(seconds)] * self.shape.ranks

    def _speed(self, pair: tuple[int, int]) -> float:
        speeds = self.pairs.get(pair, [10.0])
        return speeds.pop(0) if len(speeds) > 1 else speeds[0]
