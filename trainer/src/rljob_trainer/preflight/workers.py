"""The ranks' places as Ray workers, which live for the measurement only. Light: the driver imports it.

They are no part of the roster: Ray ends them with the driver that started them, so there is none to take over.
"""

import time
from datetime import timedelta
from typing import Any, Self

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from rljob_trainer.errors import first_line
from rljob_trainer.preflight.measured import (
    Health,
    MemberFailed,
    MemberSettings,
    Place,
    Timing,
    Trial,
    Unanswered,
    default_library,
)
from rljob_trainer.preflight.rounds import Shape
from rljob_trainer.rank.results import Rendezvous
from rljob_trainer.workers.context import WorkerContext
from rljob_trainer.workers.placement import options

CONNECT_SECONDS = 120.0
"""Deadline of connecting all ranks once their processes have started."""

END_SECONDS = 30.0
"""Deadline for Ray to end the workers, so that ranks find their GPUs free."""


class FabricWorker:
    """The process of one rank."""

    def __init__(self, rank: int, shape: Shape, device: str, largest: int) -> None:
        from rljob_trainer.preflight.member import Member

        self.member = Member(MemberSettings(rank, shape, device, default_library(device), largest, CONNECT_SECONDS))

    def started(self) -> None:
        """Answers once the imports are done."""

    def open_store(self) -> Rendezvous:
        from rljob_trainer.rank.rendezvous import open_store

        self._store, rendezvous = open_store(_address())
        return rendezvous

    def connect(self, rendezvous: Rendezvous) -> Place:
        from rljob_trainer.rank.rendezvous import join_store

        if self.member.rank > 0:
            self._store = join_store(rendezvous, timedelta(seconds=self.member.settings.seconds))
        return self.member.connect(self._store, _address())

    def run(self, trial: Trial, warm_ups: int, iterations: int) -> Timing:
        return self.member.run(trial, warm_ups, iterations)

    def health(self, folder: str | None) -> Health:
        return self.member.health(folder)


def _address() -> str:
    return str(ray.util.get_node_ip_address())


class RayMembers:
    """Start them, and end them with the block. largest: bytes of the largest trial."""

    def __init__(self, context: WorkerContext, shape: Shape, largest: int) -> None:
        gpus, placement = int(context.device_type == "cuda"), context.placement
        kind = ray.remote(num_cpus=0, num_gpus=gpus)(FabricWorker)
        self._workers: list[Any] = [
            kind.options(**options(placement.of_rank(rank))).remote(rank, shape, context.device_type, largest)
            for rank in range(shape.ranks)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        waiting = [worker.started.remote() for worker in self._workers]
        for worker in self._workers:
            ray.kill(worker)
        ray.wait(waiting, num_returns=len(waiting), timeout=END_SECONDS)

    def places(self, seconds: float) -> list[Place]:
        self._answers([worker.started.remote() for worker in self._workers], seconds)
        (rendezvous,) = self._answers([self._workers[0].open_store.remote()], CONNECT_SECONDS)
        return self._answers([worker.connect.remote(rendezvous) for worker in self._workers], CONNECT_SECONDS)

    def run(self, trial: Trial, warm_ups: int, iterations: int, seconds: float) -> list[Timing]:
        return self._answers([worker.run.remote(trial, warm_ups, iterations) for worker in self._workers], seconds)

    def health(self, folder: str | None, seconds: float) -> list[Health]:
        return self._answers([worker.health.remote(folder) for worker in self._workers], seconds)

    def _answers(self, asked: list[Any], seconds: float) -> list[Any]:
        """One of each rank, in their order. The first failure counts: others may follow from it."""
        values: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while left := [rank for rank in range(len(asked)) if rank not in values]:
            wait = max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait([asked[rank] for rank in left], num_returns=1, timeout=wait)
            if not ready:
                raise Unanswered(left)
            values |= {rank: _value(rank, asked[rank]) for rank in left if asked[rank] in ready}
        return [values[rank] for rank in range(len(asked))]


def _value(rank: int, answer: Any) -> Any:
    try:
        return ray.get(answer)
    except RayTaskError as error:
        raise MemberFailed(rank, f"{type(error.cause).__name__}: {first_line(error.cause)}") from error
    except RayActorError as error:
        raise MemberFailed(rank, f"its process died: {first_line(error)}") from error
    except RayError as error:
        raise MemberFailed(rank, first_line(error)) from error
