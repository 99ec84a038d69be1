"""The Ray workers of a job, and calls to them that have deadlines.

    driver ──> RankHost   x ranks        one GPU each (or a share of the CPU cores)
           ──> EngineHost  x ranks / tp   on the GPUs of its ranks, taking turns with them
           ──> RewardHost                 processes of the user's reward code

Each group first takes over what a former driver left (hosting/). Ranks hold one policy together, so either all of them
are taken over or none; engines (engine_group.py) are replaced one by one.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from rljob_api import ResolvedSpec
from rljob_api.durations import parse_duration
from rljob_trainer.errors import InfrastructureError, WorkerLost
from rljob_trainer.rank.rank_host import RankHost
from rljob_trainer.rank.settings import RankSettings
from rljob_trainer.rank.training_state import RankState
from rljob_trainer.rewards.reward_host import RewardHost
from rljob_trainer.volume import Volume
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.placement import Placement, options
from rljob_trainer.workers.roster import Roster, Worker
from rljob_trainer.workers.waiting import loss_among, wait_for, wait_together

if TYPE_CHECKING:
    import ray

log = structlog.get_logger()

START_SECONDS = 600.0
"""Deadline of starting processes, loading weights and compiling an engine."""

UPDATE_SECONDS = 3600.0
"""Deadline of one update, and of a checkpoint."""

SYNC_SECONDS = 300.0

APART_SECONDS = 60.0
"""How much longer than another a rank may take to finish what a former driver asked for, if it asked all of them."""

REWARDS = "rewards"

MODEL_CALLS = 32
"""Bundles of groups that may wait for reward models at once."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What every group of workers needs. threads: of one rank or engine on a CPU."""

    spec: ResolvedSpec
    device_type: str
    threads: int
    roster: Roster
    heartbeats: Heartbeats
    placement: Placement = field(default_factory=Placement)

    def signature(self, *parts: object) -> str:
        """Equal for workers of the same job that were made in the same way; how drivers resume does not change them."""
        spec = self.spec.model_dump_json(exclude={"checkpoint"})
        text = "\0".join([spec, self.device_type, str(self.threads), *map(repr, parts)])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PendingCalls:
    """What all ranks were asked. answers: theirs to come, also for calls that take them. result: waits for them."""

    answers: "list[ray.ObjectRef[Any]]"
    result: Callable[[], list[Any]]


class RankGroup:
    """All trainer ranks, called together: every method of Rank is collective."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        settings = [_rank_settings(context, rank) for rank in range(context.spec.ranks)]
        self._signatures = {f"rank-{each.rank}": context.signature(each) for each in settings}
        self._settings = dict(zip(self._signatures, settings, strict=True))
        self.workers: list[Worker] = []

    def __len__(self) -> int:
        return len(self._settings)

    def take_over(self) -> RankState | None:
        """The state of the living ranks, if all of them hold the same; else they are ended."""
        adopted = self._context.roster.adopt({name: [each] for name, each in self._signatures.items()})
        self.workers = list(adopted.values())
        if len(adopted) == len(self):
            self.workers = [adopted[name] for name in self._signatures]
            held = self._held()
            if held is not None:
                return held
        self.end()
        return None

    def _held(self) -> RankState | None:
        heartbeats = self._context.heartbeats
        calls = [worker.call("held") for worker in self.workers]  # each answers after what it does now
        what = "the trainer's ranks to finish what their former driver asked for"
        try:
            states: list[RankState | None] = wait_together(
                calls, UPDATE_SECONDS, APART_SECONDS, what, lambda: heartbeats.check("rank"), heartbeats.doing
            )
        except InfrastructureError as error:
            log.warning("ranks_not_taken_over", reason=str(error))
            return None
        marks = {(state.mark.step, state.mark.digest, state.mark.stage) if state else None for state in states}
        if len(marks) > 1 or states[0] is None:
            log.warning("ranks_not_taken_over", reason=f"they hold different states: {marks}")
            return None
        return RankState(states[0].mark, [state.result for state in states if state])

    def start(self) -> None:
        """Start all ranks, without waiting for them: they import while data is read."""
        gpus, placement = int(self._context.device_type == "cuda"), self._context.placement
        self.workers = [
            self._context.roster.start(
                name, self._signatures[name], RankHost,
                {"num_gpus": gpus, **options(placement.of_rank(settings.rank))}, self._context.spec, settings,
            )
            for name, settings in self._settings.items()
        ]  # fmt: skip

    def connect(self) -> list[dict[str, Any]]:
        """Build the process group over all ranks."""
        opened = self.workers[0].call("open_store")
        address = self._wait(opened, START_SECONDS, "rank 0 of the trainer to start", "rank")
        return self.call("connect", START_SECONDS, address)

    def call(
        self, method: str, seconds: float, *args: Any, each: Sequence[tuple[Any, ...]] | None = None,
        group: str | None = None,
    ) -> list[Any]:  # fmt: skip
        """Call `method` on every rank with `args`, or with rank r's own `each[r]` before them."""
        return self.begin(method, seconds, *args, each=each, group=group).result()

    def begin(
        self, method: str, seconds: float, *args: Any, each: Sequence[tuple[Any, ...]] | None = None,
        group: str | None = None,
    ) -> "PendingCalls":  # fmt: skip
        """As `call`, without waiting; ranks do one thing after another. seconds: how long its result is waited for."""
        own = each if each is not None else [()] * len(self.workers)
        calls = [worker.call(method, *mine, *args, group=group) for worker, mine in zip(self.workers, own, strict=True)]
        matter = ("rank", "engine") if method == "send_weights" else ("rank",)
        what = f"the trainer's ranks to {method.replace('_', ' ')}"
        return PendingCalls(calls, lambda: list(self._wait(calls, seconds, what, *matter)))

    def _wait(self, refs: Any, seconds: float, what: str, *matter: str) -> Any:
        """Raises RankLost, or another worker's loss, where one is behind a failure; else what the ranks raised.

        matter: kinds of workers without which it is no use to wait.
        """
        heartbeats = self._context.heartbeats
        try:
            return wait_for(refs, seconds, what, lambda: heartbeats.check(*matter), heartbeats.doing)
        except WorkerLost:
            raise
        except InfrastructureError as error:
            others = loss_among(refs) if isinstance(refs, list) else None
            raise others or heartbeats.diagnose() or error from error

    def end(self) -> None:
        for worker in self.workers:
            self._context.roster.end(worker)
        self.workers = []


class Scorer:
    """The Ray worker that scores groups, as many at a time as it has processes; more where it waits for models."""

    def __init__(
        self, context: WorkerContext, volume: Volume, model_dir: Path, base_dir: str, reward_models: Mapping[str, str]
    ) -> None:
        self._context = context
        urls, log_file = dict(reward_models), volume.logs / "rewards.log"
        self._arguments = (context.spec.rewards, str(model_dir), base_dir, urls, str(log_file), str(volume.root))
        self._signature = context.signature(*self._arguments)
        adopted = context.roster.adopt({REWARDS: [self._signature]})
        self.worker = adopted.get(REWARDS) or self._host()

    def _host(self) -> Worker:
        rewards = self._context.spec.rewards
        waiting = MODEL_CALLS if rewards.models else 0
        how = {"max_concurrency": rewards.processes + waiting + 1, **options(self._context.placement.of_rank(0))}
        return self._context.roster.start(REWARDS, self._signature, RewardHost, how, *self._arguments)

    def start(self) -> None:
        """Load the reward functions where they are not, without waiting; needs the tokenizer in the model's folder."""
        self._started: Any = self.worker.call("start")

    def ready(self) -> None:
        """Raises RewardError for functions that cannot be loaded."""
        wait_for(self._started, START_SECONDS, "the reward functions to load", self._context.heartbeats.check)

    def replace(self) -> None:
        self._context.roster.end(self.worker)
        self.worker = self._host()
        self.start()
        self.ready()


def _rank_settings(context: WorkerContext, rank: int) -> RankSettings:
    return RankSettings(
        rank=rank,
        world=context.spec.ranks,
        device_type="cuda" if context.device_type == "cuda" else "cpu",
        sync_groups=sync_groups(context.spec, context.device_type),
        threads=context.threads,
        collective_seconds=UPDATE_SECONDS,
    )


def sync_groups(spec: ResolvedSpec, device_type: str) -> tuple[tuple[int, ...], ...]:
    """Ranks that send weights together: those of one engine on GPUs, all of one node where memory is shared."""
    size = spec.rollout.tensor_parallel_size if device_type == "cuda" else spec.cluster.ranks_per_node
    return tuple(tuple(range(first, first + size)) for first in range(0, spec.ranks, size))


def rollout_seconds(spec: ResolvedSpec) -> float:
    return parse_duration(spec.rollout.deadline)
