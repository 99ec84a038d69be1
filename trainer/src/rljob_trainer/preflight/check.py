"""Measure the fabric: pairs of ranks first, then collectives of all ranks at growing sizes.

    places ──> health ──> rounds of pairs ──> slow rounds again ──> each size: all_reduce, all_gather, ...
                              │                                          │
                              └── a hang names its pairs                 └── ends at the size that does not fit the time

One process decides: it asks all ranks for the next trial, and they answer.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rljob_trainer.preflight.bandwidth import COLLECTIVES, IN_PLACE, Operation, Speed, speed
from rljob_trainer.preflight.measured import Measured, Members, Pair, Row, Suspect, Timing, Trial, Unanswered
from rljob_trainer.preflight.rounds import MIB, Round, Shape, rounds, sizes

ITERATIONS = 20
WARM_UPS = 5
"""As nccl-tests has them; large sizes get fewer, so that a trial takes about TRIAL_SECONDS."""

TRIAL_SECONDS = 0.25

TRIES = 3
"""How often a pair below the minimum is measured: another job may use the network for a moment."""

HUNG_SECONDS = 60.0
"""Deadline of one trial, whose ranks then hang. The first ones connect all links."""


@dataclass(frozen=True, slots=True)
class Limits:
    """smallest, largest: bytes of collectives. pair: bytes that two ranks exchange in each direction.

    seconds: time for everything but the start of the processes. minimum: bus bandwidth of a pair, GB/s, below which it
    is measured again.
    folder: see Members.health.
    """

    smallest: int
    largest: int
    pair: int
    seconds: float
    minimum: float = 0.0
    folder: str | None = None


GPU_LIMITS = Limits(MIB, 1024 * MIB, 256 * MIB, 60.0)
CPU_LIMITS = Limits(MIB // 4, 4 * MIB, 4 * MIB, 60.0)


def measure(members: Members, shape: Shape, limits: Limits, start_seconds: float) -> Measured:
    """start_seconds: deadline of the processes' start.

    Raises Unanswered if they do not start, MemberFailed if one fails.
    """
    places = members.places(start_seconds)
    begin = time.monotonic()
    check = _Check(members, shape, limits, Measured(places, pair_bytes=limits.pair), begin)
    check.measured.health = members.health(limits.folder, HUNG_SECONDS)
    if shape.ranks > 1:
        check.pairs()
        check.collectives()
    check.measured.seconds = time.monotonic() - begin
    return check.measured


@dataclass(slots=True)
class _Check:
    members: Members
    shape: Shape
    limits: Limits
    measured: Measured
    begin: float

    def pairs(self) -> None:
        """At most half of the time, and at least one round."""
        found: dict[tuple[int, int], Pair] = {}
        todo = rounds(self.shape)
        for attempt in range(TRIES):
            for number, each in enumerate(todo):
                if self.measured.hung is not None or (found and self._spent() > self.limits.seconds / 2):
                    self.measured.pairs_left_out += len(todo) - number if attempt == 0 else 0
                    break
                for pair in self._round(each):
                    found[pair.ranks] = _better(found.get(pair.ranks), pair)
            todo = [each for each in todo if any(self._is_slow(found.get(pair)) for pair in each.pairs(self.shape))]
        self.measured.pairs = sorted(found.values(), key=lambda pair: pair.ranks)

    def _round(self, each: Round) -> list[Pair]:
        trial = Trial(Operation.PAIR, self.limits.pair, round=each)
        try:
            timings = self._run(trial, ITERATIONS // 4)
        except Unanswered as error:
            self.measured.hung = trial
            return [Pair(pair, 0.0) for pair in each.pairs(self.shape) if {*pair} & {*error.ranks}]
        return [_pair(pair, timings, trial.nbytes) for pair in each.pairs(self.shape)]

    def _is_slow(self, pair: Pair | None) -> bool:
        return pair is not None and not pair.wrong and pair.bus < self.limits.minimum

    def collectives(self) -> None:
        """The sizes that fit into the time, and at least the smallest."""
        iterations = dict.fromkeys(COLLECTIVES, ITERATIONS)
        expected = 0.0
        for nbytes in sizes(self.limits.smallest, self.limits.largest):
            late = bool(self.measured.rows) and self._spent() + expected > self.limits.seconds
            if self.measured.hung is not None or late:
                self.measured.left_out = nbytes
                return
            before = self._spent()
            for operation in COLLECTIVES:
                row = self._row(operation, nbytes, iterations[operation])
                if row is None:
                    return
                self.measured.rows.append(row)
                seconds = 2 * row.out_of_place.seconds  # of the next size
                iterations[operation] = min(ITERATIONS, max(2, int(TRIAL_SECONDS / seconds)))
            expected = 2 * (self._spent() - before)

    def _row(self, operation: Operation, nbytes: int, iterations: int) -> Row | None:
        """None if a trial hangs."""
        try:
            out_of_place = self._speed(Trial(operation, nbytes), iterations)
            in_place = (
                self._speed(Trial(operation, nbytes, in_place=True), iterations) if operation in IN_PLACE else None
            )
        except Unanswered:
            self.measured.hung = Trial(operation, nbytes)
            return None
        return Row(operation, nbytes, out_of_place, in_place)

    def _speed(self, trial: Trial, iterations: int) -> Speed:
        """The mean over the ranks, as nccl-tests reports it."""
        timings = self._run(trial, iterations)
        found = [
            Suspect(trial.operation, trial.nbytes, rank, wrong.source, wrong.elements)
            for rank, timing in enumerate(timings)
            for wrong in timing.wrong
        ]
        self.measured.suspects += found
        seconds = fmean(timing.seconds for timing in timings if timing.seconds is not None)
        return speed(trial.operation, trial.nbytes, seconds, self.shape.ranks, sum(each.elements for each in found))

    def _run(self, trial: Trial, iterations: int) -> list[Timing]:
        return self.members.run(trial, max(1, iterations * WARM_UPS // ITERATIONS), iterations, HUNG_SECONDS)

    def _spent(self) -> float:
        return time.monotonic() - self.begin


def _pair(ranks: tuple[int, int], timings: Sequence[Timing], nbytes: int) -> Pair:
    """The slower direction of the two counts."""
    both = [timings[rank] for rank in ranks]
    seconds = max(timing.seconds for timing in both if timing.seconds is not None)
    wrong = sum(each.elements for timing in both for each in timing.wrong)
    return Pair(ranks, speed(Operation.PAIR, nbytes, seconds, 2).bus, wrong)


def _better(before: Pair | None, now: Pair) -> Pair:
    """The faster one, with the wrong elements of both."""
    if before is None:
        return now
    return Pair(now.ranks, max(before.bus, now.bus), before.wrong + now.wrong)
