"""One engine in a process of its own, speaking in prompts and groups. A Ray actor wraps this class."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Event
from typing import Any

from rljob_trainer.engines.engine import Completion, EngineSettings, Request, RolloutEngine
from rljob_trainer.engines.registry import create_engine
from rljob_trainer.errors import FencedError, InfrastructureError
from rljob_trainer.old_types import Group, Ids, Prompt, Sample
from rljob_trainer.old_types import Sampling as OldSampling
from rljob_trainer.types import Sampling
from rljob_trainer.weights.bucket import BucketDescriptor

PROBE_SEED = 0


def sample_seed(job_seed: int, step: int, prompt_id: str, sample_index: int) -> int:
    """The seed of one sample, in [0, 2**63): the same in every process, attempt and Python version."""
    name = f"{job_seed}/{step}/{prompt_id}/{sample_index}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


class RolloutWorker:
    """Generates groups, receives weights. Its methods are RolloutEngine's, on one engine that `start` makes."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self._engine: RolloutEngine | None = None
        self._abandoned = Event()

    def start(self, gpus: Sequence[str] = (), place: int = 0) -> dict[str, Any]:
        """Build the engine (seconds to minutes). Returns what a log should say about it.

        gpus: all that it may see, as CUDA_VISIBLE_DEVICES names them. place: among the job's engines, from 0.
        """
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        self._engine = create_engine(replace(self.settings, seed=self.settings.seed + place))
        return {"engine": self.settings.kind, "device": self.settings.device, "dtype": self.settings.dtype}

    @property
    def engine(self) -> RolloutEngine:
        if self._engine is None:
            raise InfrastructureError("the rollout engine is not running")
        return self._engine

    def lie_down(self) -> bool:
        """Sleep; False where there is no engine that could."""
        if self._engine is not None:
            self._engine.sleep()
        return self._engine is not None

    def generate_groups(
        self, prompts: Sequence[Prompt], sampling: OldSampling, seeds: Sequence[Sequence[int]]
    ) -> Iterator[list[Group]]:
        """Yield each prompt's group as soon as all its samples are done, with those that are done at the same time.

        seeds: [prompts][samples], which also says how many samples each prompt gets.
        """
        waiting: dict[str, list[Sample]] = {prompt.id: [] for prompt in prompts}
        wanted = {prompt.id: (prompt, len(row)) for prompt, row in zip(prompts, seeds, strict=True)}
        version = self.engine.policy_version
        how = Sampling(sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop)
        pairs = zip(prompts, seeds, strict=True)
        requests = [Request(prompt.id, prompt.token_ids, how, tuple(row)) for prompt, row in pairs]
        for finished in self._generate(requests):
            groups = []
            for each in finished:
                done = waiting[each.request_id]
                done.append(Sample(each.request_id, each.sample, each.token_ids, each.log_probs, each.finish_reason))
                prompt, samples = wanted[each.request_id]
                if len(done) == samples:
                    del waiting[prompt.id]
                    groups.append(Group(prompt, tuple(sorted(done, key=lambda one: one.sample_index)), version))
            if groups:
                yield groups
        if waiting:
            raise InfrastructureError(f"the rollout engine left {len(waiting)} of {len(prompts)} prompts unfinished")

    def probe(self, prompts: Sequence[Ids], max_tokens: int) -> list[Completion]:
        """An answer at temperature 1 to each of the fixed `prompts`, in their order, along the normal path."""
        sampling = Sampling(max_tokens=max_tokens)
        requests = [Request(f"probe/{index}", ids, sampling, (PROBE_SEED,)) for index, ids in enumerate(prompts)]
        answers = {each.request_id: each for finished in self._generate(requests) for each in finished}
        return [answers[request.id] for request in requests]

    def _generate(self, requests: Sequence[Request]) -> Iterator[Sequence[Completion]]:
        self._abandoned = Event()  # one for each call: an abandon that comes late reaches no later call
        try:
            for request in requests:
                self.engine.submit(request)
            while self.engine.unfinished:
                if self._abandoned.is_set():
                    raise FencedError("the responses were abandoned: another attempt takes the rollout engine over")
                if finished := self.engine.step():
                    yield finished
        finally:
            self.engine.abort({request.id for request in requests})

    def abandon(self) -> None:
        """From another thread: end generate_groups or probe, if one runs, at its next token; it raises FencedError.

        The engine keeps nothing of it and takes the next call.
        """
        self._abandoned.set()

    def begin_update(self, version: int) -> None:
        self.engine.begin_update(version)

    def load_bucket(self, bucket: BucketDescriptor) -> None:
        self.engine.load_bucket(bucket)

    def complete_update(self, version: int, prompts: Sequence[Ids], max_tokens: int) -> list[Completion]:
        """What follows the last bucket, in one call: use the weights, take the KV cache's memory, answer the probe."""
        self.engine.finish_update(version)
        self.engine.wake()
        return self.probe(prompts, max_tokens)

    def sleep(self) -> None:
        self.engine.sleep()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
