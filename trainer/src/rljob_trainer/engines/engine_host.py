"""The Ray worker of a rollout engine. Light: the driver imports it."""

import os
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog

from rljob_trainer.compute.compiled import keep_compiled
from rljob_trainer.engines.calls import Delivery, Receiver, Subscriber
from rljob_trainer.engines.engine import Completion, EngineSettings, Request, RolloutEngine
from rljob_trainer.engines.engine_loop import EngineLoop
from rljob_trainer.engines.registry import ENGINES, create_engine, measures_memory
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.types import Ids, Sampling
from rljob_trainer.weights.bucket import BucketDescriptor
from rljob_trainer.workers.host import Host
from rljob_trainer.workers.trace import traced

log = structlog.get_logger()

PROBE_SEED = 0


class EngineProcess:
    """One engine, which `start` makes, and what driver, ranks and rollout host ask of it."""

    def __init__(self, name: str, settings: EngineSettings) -> None:
        self._name, self._settings = name, settings
        self._subscriber: Subscriber | None = None
        self._requests: set[str] = set()
        self._loop = EngineLoop(self._deliver)

    # ------------------------------------------------------------------ the driver

    def start(self, gpus: Sequence[str], place: int, beside: bool, *_before: bool) -> bool:
        """Build the engine (seconds to minutes), if there is none. Raises JobError with the remedy if it cannot run.

        gpus: all that it may see, as CUDA_VISIBLE_DEVICES names them. place: among the job's engines, from 0.
        beside: others take memory of its GPUs meanwhile; an engine that has to measure it is not built then.
        _before: starts that this one waits for. Returns whether the engine runs.
        """
        if self._loop.engine is not None:
            return True
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        settings = replace(self._settings, seed=self._settings.seed + place, place=place)
        if beside and measures_memory(settings):
            return False
        with traced("start/build"):
            self._loop.start(lambda: create_engine(settings))
        return True

    def rest(self) -> bool:
        """Sleep, for a driver that has taken the engine over; False if no engine was started."""
        if self._loop.engine is None:
            return False
        self._loop.do_when_idle(lambda: self._engine().sleep())
        return True

    def sleep(self) -> None:
        """Give the GPU memory back. Raises InfrastructureError while samples are unfinished."""
        self._loop.do(lambda: self._engine().sleep())

    # ------------------------------------------------------------------ the ranks

    def begin_update(self, version: int) -> None:
        self._loop.do(lambda: self._engine().begin_update(version))

    def load_bucket(self, bucket: BucketDescriptor) -> None:
        self._loop.do(lambda: self._engine().load_bucket(bucket))

    def complete_update(self, version: int, prompts: Sequence[Ids], max_tokens: int) -> list[Completion]:
        """What follows the last bucket, in one call: use the weights, wake, answer the probe.

        prompts: of the probe, [P] each. Returns one completion for each, in their order, sampled at temperature 1.
        """

        def work() -> list[Completion]:
            engine = self._engine()
            with traced("complete_update/finish"):
                engine.finish_update(version)
            with traced("complete_update/wake"):
                engine.wake()
            with traced("complete_update/probe"):
                answers, others = _probe(engine, prompts, max_tokens)
            self._loop.keep(others)
            return answers

        return self._loop.do(work)

    # ------------------------------------------------------------------ the rollout host, in the group "inbox"

    def subscribe(self, subscriber: Subscriber) -> None:
        """Send completions to that host from now on; requests of another host are aborted."""

        def work() -> None:
            before, self._subscriber = self._subscriber, subscriber
            if before is not None and before.incarnation != subscriber.incarnation:
                self._forget()

        self._loop.post(work)

    def submit(self, incarnation: str, requests: Sequence[Request]) -> None:
        """Generate; the subscriber receives each completion, or the error. Requests of others are ignored."""

        def work() -> None:
            if self._subscriber is None or self._subscriber.incarnation != incarnation:
                return
            engine = self._engine()
            for request in requests:
                engine.submit(request)
                self._requests.add(request.id)

        self._loop.post(work)

    def abort(self, incarnation: str, request_ids: Collection[str]) -> None:
        """Forget these requests."""

        def work() -> None:
            if self._loop.engine is not None and self._subscriber and self._subscriber.incarnation == incarnation:
                self._loop.engine.abort(request_ids)
                self._requests.difference_update(request_ids)

        self._loop.post(work)

    def close(self) -> None:
        self._loop.close()

    def generating_since(self) -> float | None:
        """time.monotonic() when it began to generate; None while it does not."""
        return self._loop.busy_since

    # ------------------------------------------------------------------ in the loop

    def _engine(self) -> RolloutEngine:
        if self._loop.engine is None:
            raise InfrastructureError("the rollout engine is not running")
        return self._loop.engine

    def _forget(self) -> None:
        if self._loop.engine is not None:
            self._loop.engine.abort(self._requests)
        self._requests.clear()

    def _deliver(self, completions: Sequence[Completion], error: Exception | None) -> None:
        if self._loop.engine is None or not self._loop.engine.unfinished:
            self._requests.clear()
        if self._subscriber is None:
            return
        delivery = Delivery(self._name, self._subscriber.incarnation, tuple(completions), error)
        self._subscriber.host.call_beside("inbox", Receiver.deliver, delivery)


def _probe(engine: RolloutEngine, prompts: Sequence[Ids], max_tokens: int) -> tuple[list[Completion], list[Completion]]:
    """A sample at temperature 1 for each of the fixed prompts, along the normal path; and what else ended meanwhile."""
    sampling, names = Sampling(max_tokens=max_tokens), [f"probe/{index}" for index in range(len(prompts))]
    for name, ids in zip(names, prompts, strict=True):
        engine.submit(Request(name, ids, sampling, (PROBE_SEED,)))
    answers: dict[str, Completion] = {}
    others: list[Completion] = []
    while len(answers) < len(prompts):
        for completion in engine.step():
            if completion.request_id in names:
                answers[completion.request_id] = completion
            else:
                others.append(completion)
    return [answers[name] for name in names], others


class EngineHost(Host):
    """A rollout engine that outlives its driver."""

    harmless = frozenset(method.__name__ for method in (EngineProcess.submit, EngineProcess.abort))  # see Subscriber
    worker: EngineProcess

    def create(
        self, name: str, settings: EngineSettings, threads: int, compiled: str | None = None
    ) -> EngineProcess:  # fmt: skip
        """Imports what the engine needs, while others still read data and weights."""
        keep_compiled(compiled)
        with traced("start/imports"), suppress(JobError):  # vLLM is missing: start says so
            ENGINES[settings.kind].factory(settings.device)
        if settings.device == "cpu":
            import torch

            from rljob_trainer.compute.freed_memory import keep_freed_memory

            keep_freed_memory()
            torch.set_num_threads(threads)
        return EngineProcess(name, settings)

    def also_doing(self) -> list[tuple[str, float]]:
        since = self.worker.generating_since()
        return [] if since is None else [("generate", time.monotonic() - since)]
