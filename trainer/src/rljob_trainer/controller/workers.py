"""The Ray workers of one attempt, and calls to them that have deadlines.

    driver ──> ActorHost   x ranks        one GPU each (or a share of the CPU cores)
           ──> EngineHost  x ranks / tp   on the GPUs of its ranks, taking turns with them
           ──> RewardHost                 processes of the user's reward code

A host only adds what a Ray worker needs to the plain class that does the work.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from rljob_api import ResolvedSpec
from rljob_api.durations import parse_duration
from rljob_trainer.actor.worker import ActorWorker, RankSettings
from rljob_trainer.rewards.host import RewardHost
from rljob_trainer.rollout.engine import EngineSettings
from rljob_trainer.rollout.host import EngineHost
from rljob_trainer.waiting import wait_for

START_SECONDS = 600.0
"""Deadline of starting processes, loading weights and compiling an engine."""

UPDATE_SECONDS = 3600.0
"""Deadline of one update, and of a checkpoint."""

SYNC_SECONDS = 300.0


class ActorHost(ActorWorker):
    """A trainer rank that knows its node's address."""

    def open_store_here(self) -> tuple[str, int]:
        return self.open_store(ray.util.get_node_ip_address())


class ActorGroup:
    """All trainer ranks, called together: every method of ActorWorker is collective."""

    def __init__(self, spec: ResolvedSpec, device_type: str, threads: int) -> None:
        settings = [_rank_settings(spec, rank, device_type, threads) for rank in range(spec.ranks)]
        remote = ray.remote(ActorHost)
        self.workers = [
            remote.options(num_cpus=0, num_gpus=1 if device_type == "cuda" else 0).remote(spec, each)
            for each in settings
        ]

    def __len__(self) -> int:
        return len(self.workers)

    def call(
        self, method: str, seconds: float, *args: Any, each: Sequence[tuple[Any, ...]] | None = None,
        group: str | None = None,  # noqa: ARG002  every method still takes its turn
    ) -> list[Any]:  # fmt: skip
        """Call `method` on every rank with `args`, or with rank r's own `each[r]` before them."""
        own = each if each is not None else [()] * len(self.workers)
        calls = [getattr(worker, method).remote(*mine, *args) for worker, mine in zip(self.workers, own, strict=True)]
        return list(wait_for(calls, seconds, f"the trainer's ranks to {method.replace('_', ' ')}"))

    def connect(self) -> list[dict[str, Any]]:
        """Build the process group over all ranks."""
        address = wait_for(self.workers[0].open_store_here.remote(), START_SECONDS, "rank 0 of the trainer to start")
        return self.call("connect", START_SECONDS, address)


class EngineGroup:
    """All rollout engines."""

    def __init__(self, settings: EngineSettings, count: int, threads: int) -> None:
        remote = ray.remote(EngineHost).options(num_cpus=0, num_gpus=0)
        own = [replace(settings, seed=settings.seed + index) for index in range(count)]
        self.workers = [remote.remote(each, threads) for each in own]
        self._gpus_each = settings.tensor_parallel_size

    def start(self, gpus: Sequence[str | None]) -> list[dict[str, Any]]:
        """Build the engines (seconds to minutes). gpus: of each rank in turn; None for a rank on a CPU."""
        size = self._gpus_each
        shares = [[gpu for gpu in gpus[i * size : (i + 1) * size] if gpu] for i in range(len(self.workers))]
        calls = [worker.start_on.remote(share) for worker, share in zip(self.workers, shares, strict=True)]
        return list(wait_for(calls, START_SECONDS, "the rollout engines to start"))

    def call(self, method: str, seconds: float, *args: Any) -> list[Any]:
        calls = [getattr(worker, method).remote(*args) for worker in self.workers]
        return list(wait_for(calls, seconds, f"the rollout engines to {method.replace('_', ' ')}"))


def reward_host(spec: ResolvedSpec, model_dir: Path, base_dir: str, log: Path) -> Any:
    """The Ray worker that scores groups, as many at a time as it has processes."""
    remote = ray.remote(RewardHost)
    threads = spec.rewards.processes + 1
    return remote.options(num_cpus=0, max_concurrency=threads).remote(spec.rewards, str(model_dir), base_dir, str(log))


def _rank_settings(spec: ResolvedSpec, rank: int, device_type: str, threads: int) -> RankSettings:
    return RankSettings(
        rank=rank,
        world=spec.ranks,
        device_type="cuda" if device_type == "cuda" else "cpu",
        sync_groups=sync_groups(spec, device_type),
        threads=threads,
        collective_seconds=UPDATE_SECONDS,
    )


def sync_groups(spec: ResolvedSpec, device_type: str) -> tuple[tuple[int, ...], ...]:
    """Ranks that send weights together: those of one engine on GPUs, all of one node where memory is shared."""
    size = spec.rollout.tensor_parallel_size if device_type == "cuda" else spec.cluster.ranks_per_node
    return tuple(tuple(range(first, first + size)) for first in range(0, spec.ranks, size))


def engines_of(group: Sequence[int], spec: ResolvedSpec, engines: Sequence[Any]) -> list[Any]:
    """The engines that a sync group feeds: those that live on its ranks' devices."""
    size = spec.rollout.tensor_parallel_size
    return [engine for i, engine in enumerate(engines) if i * size in group]


def rollout_seconds(spec: ResolvedSpec) -> float:
    return parse_duration(spec.rollout.deadline)
