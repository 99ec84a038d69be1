"""Engines and completions for tests of what happens between tasks and groups: no Ray, no model."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rljob_trainer.engines.calls import Delivery
from rljob_trainer.engines.engine import Completion, Request


def ids(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


def completion(request: Request, sample: int = 0, version: int = 7) -> Completion:
    """The answer is the sample's seed, modulo 1000, and 1; the prefix cache had one token of the prompt."""
    token_ids = ids(request.seeds[sample] % 1000, 1)
    versions = np.full(2, version, np.int32)
    return Completion(request.id, sample, token_ids, np.zeros(2, np.float32), versions, "stop", cached_tokens=1)


class FakeEngine:
    """What Generation knows of a Worker[EngineProcess]: notes each call.

    requests: those that it has. calls: names of all calls, in their order.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.requests: list[Request] = []
        self.calls: list[str] = []
        self.aborted: list[str] = []

    def call_beside(self, group: str, method: Any, *args: Any) -> None:
        assert group == "inbox"
        self.calls.append(method.__name__)
        getattr(self, f"_{method.__name__}")(*args)

    def _subscribe(self, subscriber: Any) -> None:
        self.incarnation = subscriber.incarnation

    def _submit(self, incarnation: str, requests: Sequence[Request]) -> None:
        assert incarnation == self.incarnation
        self.requests += requests

    def _abort(self, incarnation: str, names: Sequence[str]) -> None:
        self.aborted += names
        self.requests = [request for request in self.requests if request.id not in names]

    def finish(self, *samples: int, request: int = 0, version: int = 7) -> Delivery:
        """What it sends once those samples of a request are finished; by default all."""
        one = self.requests[request]
        which = samples or range(len(one.seeds))
        done = tuple(completion(one, sample, version) for sample in which)
        return Delivery(self.identity, self.incarnation, done)


def attached(*engines: FakeEngine) -> dict[str, Any]:
    return {engine.identity: engine for engine in engines}


class AnsweringEngine(FakeEngine):
    """Answers each request at once; while `holds`, on request."""

    def __init__(self, identity: str = "engine") -> None:
        super().__init__(identity)
        self.holds, self.version = False, 7
        self.deliver: Callable[[Delivery], None]
        self.asked = threading.Semaphore(0)

    def _submit(self, incarnation: str, requests: Sequence[Request]) -> None:
        super()._submit(incarnation, requests)
        if not self.holds:
            self.answer(len(self.requests) - len(requests))
        self.asked.release()

    def answer(self, first: int = 0) -> None:
        for index in range(first, len(self.requests)):
            self.deliver(self.finish(request=index, version=self.version))
