"""The process of one rank: connects, runs trials, and looks at its node."""

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_trainer.preflight import fabric, pattern
from rljob_trainer.preflight.bandwidth import Operation
from rljob_trainer.preflight.fabric import Fabric
from rljob_trainer.preflight.health import examine
from rljob_trainer.preflight.measured import Health, MemberSettings, Place, Timing, Trial, Wrong

ITEM = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """run: does the operation once. fill: writes the input. outputs: what arrives."""

    run: Callable[[], None]
    fill: Callable[[], None]
    outputs: Sequence["_Output"]


@dataclass(frozen=True, slots=True)
class _Output:
    """start: index of its first element in the whole array. source: as in Wrong."""

    part: Tensor
    start: int
    expected: pattern.Pattern
    source: int | None


class Member:
    """send, receive: buffers [largest / ITEM] float32, which all trials share."""

    def __init__(self, settings: MemberSettings) -> None:
        self.settings = settings
        self.rank, self.ranks = settings.rank, settings.shape.ranks

    def connect(self, store: dist.Store, address: str) -> Place:
        """Join the other ranks. address: of this rank's node."""
        self.fabric: Fabric = fabric.connect(self.settings, store)
        device = self.fabric.device
        self.send, self.receive = (torch.zeros(self.settings.largest // ITEM, device=device) for _ in range(2))
        return Place(self.rank, socket.gethostname(), address, _gpu_name(device), self.fabric.name)

    def run(self, trial: Trial, warm_ups: int, iterations: int) -> Timing:
        """Compare the result of one operation with what it should be, then time `iterations` after `warm_ups`."""
        prepared = self._prepared(trial)
        if prepared is None:
            return Timing(None)
        wrong = self._checked(prepared)
        for _ in range(warm_ups):
            prepared.run()
        self.fabric.finish()
        begin = time.perf_counter()
        for _ in range(iterations):
            prepared.run()
        self.fabric.finish()
        return Timing((time.perf_counter() - begin) / iterations, wrong)

    def health(self, folder: str | None) -> Health:
        first = self.rank % self.settings.shape.per_node == 0  # ranks of a node share its volume
        return examine(self.rank, self.fabric.device, folder if first else None)

    def _checked(self, prepared: _Prepared) -> tuple[Wrong, ...]:
        self.send.fill_(torch.nan)  # a result of the trial before must not pass for one of this
        self.receive.fill_(torch.nan)
        prepared.fill()
        prepared.run()
        self.fabric.finish()
        counted = [Wrong(each.expected.wrong(each.part, each.start), each.source) for each in prepared.outputs]
        return tuple(each for each in counted if each.elements)

    def _prepared(self, trial: Trial) -> _Prepared | None:
        """None if the round has no partner for this rank."""
        if trial.operation is Operation.PAIR:
            assert trial.round is not None
            partner = trial.round.partner(self.rank, self.settings.shape)
            return None if partner is None else self._exchange(trial.nbytes // ITEM, partner, partner)
        if trial.operation is Operation.RING:
            return self._exchange(trial.nbytes // ITEM, (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks)
        count = max(trial.nbytes // ITEM // self.ranks, 1) * self.ranks
        makers = {
            Operation.ALL_REDUCE: self._all_reduce,
            Operation.ALL_GATHER: self._all_gather,
            Operation.REDUCE_SCATTER: self._reduce_scatter,
        }
        return makers[trial.operation](count, trial.in_place)

    def _exchange(self, count: int, to: int, source: int) -> _Prepared:
        send, receive = self.send[:count], self.receive[:count]
        return _Prepared(
            partial(self.fabric.exchange, send, to, receive, source),
            partial(pattern.of_rank(self.rank, self.ranks).fill, send),
            [_Output(receive, 0, pattern.of_rank(source, self.ranks), source)],
        )

    def _all_reduce(self, count: int, in_place: bool) -> _Prepared:
        send = self.send[:count]
        receive = send if in_place else self.receive[:count]
        return _Prepared(
            partial(self.fabric.all_reduce, send, receive),
            partial(pattern.of_rank(self.rank, self.ranks).fill, send),
            [_Output(receive, 0, pattern.of_sum(self.ranks), None)],
        )

    def _all_gather(self, count: int, in_place: bool) -> _Prepared:
        share = count // self.ranks
        start, receive = self.rank * share, self.receive[:count]
        send = receive[start : start + share] if in_place else self.send[:share]
        parts = zip(range(self.ranks), receive.split(share), strict=True)
        return _Prepared(
            partial(self.fabric.all_gather, send, receive),
            partial(pattern.of_rank(self.rank, self.ranks).fill, send, start),
            [_Output(part, rank * share, pattern.of_rank(rank, self.ranks), rank) for rank, part in parts],
        )

    def _reduce_scatter(self, count: int, in_place: bool) -> _Prepared:
        share = count // self.ranks
        start, send = self.rank * share, self.send[:count]
        receive = send[start : start + share] if in_place else self.receive[:share]
        return _Prepared(
            partial(self.fabric.reduce_scatter, send, receive),
            partial(pattern.of_rank(self.rank, self.ranks).fill, send),
            [_Output(receive, start, pattern.of_sum(self.ranks), None)],
        )


def _gpu_name(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} GPU-{properties.uuid}"
