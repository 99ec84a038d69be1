"""The ranks as processes of this machine, each with its own GPU or on the CPUs."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rljob_trainer.preflight.check import Limits, measure
from rljob_trainer.preflight.measured import (
    Health,
    Library,
    Measured,
    MemberFailed,
    MemberSettings,
    Place,
    Timing,
    Trial,
    Unanswered,
    default_library,
)
from rljob_trainer.preflight.rounds import Shape

if TYPE_CHECKING:
    from rljob_trainer.preflight.member import Member

ADDRESS = "127.0.0.1"

START_SECONDS = 300.0
"""Deadline of the start of the processes, which import torch."""

Maker = Callable[[MemberSettings], "Member"]


def measure_here(shape: Shape, gpus: Sequence[str], limits: Limits, library: Library | None = None) -> Measured:
    """gpus, library: as LocalMembers has them. Raises what `measure` raises."""
    with LocalMembers(shape, gpus, library, max(limits.largest, limits.pair)) as members:
        return measure(members, shape, limits, START_SECONDS)


class LocalMembers:
    """Start them, and end them with the block.

    gpus: CUDA_VISIBLE_DEVICES of each rank; empty for the CPUs.
    library: None for the default. largest: bytes of the largest trial.
    make: what answers in each process; by default a Member.
    """

    def __init__(
        self, shape: Shape, gpus: Sequence[str], library: Library | None, largest: int,
        make: Maker | None = None,
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="rljob-preflight-")
        store = str(Path(self._folder.name) / "store")
        device = "cuda" if gpus else "cpu"
        library = library or default_library(device)
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(shape.ranks):
            ours, theirs = spawn.Pipe()
            settings = MemberSettings(rank, shape, device, library, largest, START_SECONDS)
            arguments = (theirs, store, gpus[rank] if gpus else "", settings, make)
            process = spawn.Process(target=_serve, args=arguments, daemon=True, name=f"preflight-{rank}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """A process may hang in a collective, so none is waited for."""
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()

    def places(self, seconds: float) -> list[Place]:
        return self._ask(seconds, "connect")

    def run(self, trial: Trial, warm_ups: int, iterations: int, seconds: float) -> list[Timing]:
        return self._ask(seconds, "run", trial, warm_ups, iterations)

    def health(self, folder: str | None, seconds: float) -> list[Health]:
        return self._ask(seconds, "health", folder)

    def _ask(self, seconds: float, call: str, *arguments: Any) -> list[Any]:
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((call, arguments))
            except OSError as error:
                raise MemberFailed(rank, "its process has ended") from error
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + seconds
        while missing := [rank for rank in range(len(self._pipes)) if rank not in answers]:
            ready = wait([self._pipes[rank] for rank in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Unanswered(missing)
            answers |= {rank: self._answer(rank) for rank in missing if self._pipes[rank] in ready}
        return [answers[rank] for rank in range(len(self._pipes))]

    def _answer(self, rank: int) -> Any:
        try:
            succeeded, answer = self._pipes[rank].recv()
        except (EOFError, OSError) as error:
            raise MemberFailed(rank, "its process has ended") from error
        if not succeeded:
            raise MemberFailed(rank, answer)
        return answer


def _serve(pipe: Connection, store: str, gpu: str, settings: MemberSettings, make: Maker | None) -> None:
    """Answer until the other end closes. torch is imported once the process knows its GPU."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch.distributed as dist

    from rljob_trainer.preflight.member import Member

    member = (make or Member)(settings)
    with suppress(EOFError, OSError):
        while True:
            call, arguments = pipe.recv()
            if call == "connect":
                arguments = (dist.FileStore(store, settings.shape.ranks), ADDRESS)
            try:
                pipe.send((True, getattr(member, call)(*arguments)))
            except Exception as error:  # noqa: BLE001 the other process reports it
                pipe.send((False, f"{type(error).__name__}: {error}"))
