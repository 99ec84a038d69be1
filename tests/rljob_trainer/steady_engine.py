"""An engine that needs no model, in the real Ray worker of engines. Light: its process imports nothing else."""

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljob_trainer.engines.engine import Completion, Request
from rljob_trainer.engines.engine_host import EngineHost, EngineProcess


class SteadyEngine:
    """Answers a request every `pace` seconds, and notes in a file which it begins, by the prompt's first token."""

    policy_version = 0

    def __init__(self, notes: str, pace: float) -> None:
        self._notes, self._pace = Path(notes), pace
        self._requests: dict[str, Request] = {}

    @property
    def unfinished(self) -> int:
        return sum(len(request.seeds) for request in self._requests.values())

    def submit(self, request: Request) -> None:
        self._requests[request.id] = request

    def step(self) -> Sequence[Completion]:
        request = next(iter(self._requests.values()))
        with self._notes.open("a") as file:
            file.write(f"{request.token_ids[0]}\n")
        time.sleep(self._pace)
        del self._requests[request.id]
        ids = np.arange(2, 2 + request.sampling.max_tokens, dtype=np.int32)
        zeros = np.zeros(len(ids), np.int32)
        return [
            Completion(request.id, sample, ids, zeros.astype(np.float32), zeros, "length")
            for sample in range(len(request.seeds))
        ]

    def abort(self, request_ids: Collection[str]) -> None:
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def close(self) -> None: ...


class SteadyProcess(EngineProcess):
    def __init__(self, name: str, notes: str, pace: float) -> None:
        super().__init__(name, None)  # type: ignore[arg-type]
        self._loop.start(lambda: SteadyEngine(notes, pace))  # type: ignore[arg-type,return-value]

    def start(self, gpus: Sequence[str], place: int, beside: bool, *_before: bool) -> bool:
        return True


class SteadyHost(EngineHost):
    def create(self, name: str, notes: str, pace: float) -> Any:  # type: ignore[override]
        return SteadyProcess(name, notes, pace)
