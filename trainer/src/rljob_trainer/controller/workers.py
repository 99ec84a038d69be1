"""The Ray workers of a job, and calls to them that have deadlines.

    driver ──> ActorHost   x ranks        one GPU each (or a share of the CPU cores)
           ──> EngineHost  x ranks / tp   on the GPUs of its ranks, taking turns with them
           ──> RewardHost                 processes of the user's reward code

Each group first takes over what a former driver left (hosting/). Ranks hold one policy together, so either all of them
are taken over or none; engines are replaced one by one.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from rljob_api import ResolvedSpec
from rljob_api.durations import parse_duration
from rljob_trainer.actor.host import ActorHost
from rljob_trainer.actor.mark import Held
from rljob_trainer.actor.settings import RankSettings
from rljob_trainer.errors import InfrastructureError, WorkerLost
from rljob_trainer.hosting.pulse import Pulse
from rljob_trainer.hosting.roster import Roster, Worker
from rljob_trainer.rewards.host import RewardHost
from rljob_trainer.rollout.engine import EngineSettings
from rljob_trainer.rollout.host import EngineHost
from rljob_trainer.volume import Volume
from rljob_trainer.waiting import wait_for

log = structlog.get_logger()

START_SECONDS = 600.0
"""Deadline of starting processes, loading weights and compiling an engine."""

UPDATE_SECONDS = 3600.0
"""Deadline of one update, and of a checkpoint."""

SYNC_SECONDS = 300.0

SETTLE_SECONDS = 120.0
"""How long a rank that is taken over may take to finish what its former driver asked for."""

REWARDS = "rewards"


@dataclass(frozen=True, slots=True)
class Staff:
    """What every group of workers needs. threads: of one rank or engine on a CPU."""

    spec: ResolvedSpec
    device_type: str
    threads: int
    roster: Roster
    pulse: Pulse

    def signature(self, *parts: object) -> str:
        """Equal for workers of the same job that were made in the same way; how drivers resume does not change them."""
        spec = self.spec.model_dump_json(exclude={"checkpoint"})
        text = "\0".join([spec, self.device_type, str(self.threads), *map(repr, parts)])
        return hashlib.sha256(text.encode()).hexdigest()


class ActorGroup:
    """All trainer ranks, called together: every method of ActorWorker is collective."""

    def __init__(self, staff: Staff) -> None:
        self._staff = staff
        settings = [_rank_settings(staff, rank) for rank in range(staff.spec.ranks)]
        self._signatures = {f"rank-{each.rank}": staff.signature(each) for each in settings}
        self._settings = dict(zip(self._signatures, settings, strict=True))
        self.workers: list[Worker] = []

    def __len__(self) -> int:
        return len(self._settings)

    def take_over(self) -> Held | None:
        """The state of the living ranks, if all of them hold the same; else they are ended."""
        adopted = self._staff.roster.adopt({name: [each] for name, each in self._signatures.items()})
        self.workers = list(adopted.values())
        if len(adopted) == len(self):
            self.workers = [adopted[name] for name in self._signatures]
            held = self._held()
            if held is not None:
                return held
        self.end()
        return None

    def _held(self) -> Held | None:
        try:
            states: list[Held | None] = self.call("held", SETTLE_SECONDS)
        except InfrastructureError as error:
            log.warning("ranks_not_taken_over", reason=str(error))
            return None
        marks = {(state.mark.step, state.mark.digest, state.mark.stage) if state else None for state in states}
        if len(marks) > 1 or states[0] is None:
            log.warning("ranks_not_taken_over", reason=f"they hold different states: {marks}")
            return None
        return Held(states[0].mark, [state.result for state in states if state])

    def start(self) -> None:
        """Start all ranks, without waiting for them: they import while data is read."""
        options = {"num_gpus": 1 if self._staff.device_type == "cuda" else 0}
        self.workers = [
            self._staff.roster.start(name, self._signatures[name], ActorHost, options, self._staff.spec, settings)
            for name, settings in self._settings.items()
        ]

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
        own = each if each is not None else [()] * len(self.workers)
        calls = [worker.call(method, *mine, *args, group=group) for worker, mine in zip(self.workers, own, strict=True)]
        matter = ("rank", "engine") if method == "send_weights" else ("rank",)
        return list(self._wait(calls, seconds, f"the trainer's ranks to {method.replace('_', ' ')}", *matter))

    def _wait(self, refs: Any, seconds: float, what: str, *matter: str) -> Any:
        """Raises RankLost, or another worker's loss, where one is behind a failure; else what the ranks raised.

        matter: kinds of workers without which it is no use to wait.
        """
        pulse = self._staff.pulse
        try:
            return wait_for(refs, seconds, what, lambda: pulse.check(*matter), pulse.doing)
        except WorkerLost:
            raise
        except InfrastructureError as error:
            raise pulse.diagnose() or error from error

    def end(self) -> None:
        for worker in self.workers:
            self._staff.roster.end(worker)
        self.workers = []


class EngineGroup:
    """All rollout engines, each with a place: a number, and with it GPUs. `ready` waits for those that start.

    spare: a process that has imported what an engine needs, for the place of the next one that is lost.
    """

    def __init__(self, staff: Staff, settings: EngineSettings, actors: ActorGroup) -> None:
        self._staff, self._settings, self._actors = staff, settings, actors
        count = staff.spec.ranks // settings.tensor_parallel_size
        self._names = [f"engine-{number}" for number in range(count + 1)]
        self._places = [staff.signature(settings, place) for place in range(count)]
        self._spare_place = staff.signature(settings, "spare")
        accepted = (*self._places, self._spare_place)
        adopted = staff.roster.adopt(dict.fromkeys(self._names, accepted))
        living = {worker.signature: worker for worker in adopted.values()}
        self._spare = living.get(self._spare_place)
        self.workers = [living.get(place) or self._host(place) for place in self._places]
        self._adopted = set(adopted)
        self._running: set[str] = set()
        self._started: dict[str, Any] = {}
        self.replaced = 0

    @property
    def running(self) -> bool:
        return len(self._running) == len(self.workers)

    def start(self) -> None:
        """Let those that do not run yet build their engines (seconds to minutes), without waiting for them."""
        begun = self._running | self._started.keys()
        missing = [index for index, worker in enumerate(self.workers) if worker.name not in begun]
        if not missing:
            return
        gpus: list[str | None] = self._actors.call("visible_gpu", START_SECONDS)
        for index in missing:
            size = self._settings.tensor_parallel_size
            share = gpus[index * size : (index + 1) * size]
            worker = self.workers[index]
            self._started[worker.name] = worker.call("start", [gpu for gpu in share if gpu], index)

    def ready(self) -> None:
        """Wait until all engines run."""
        self.start()
        while self._started:
            name, started = next(iter(self._started.items()))
            info = wait_for(started, START_SECONDS, f"{name} to start", self._staff.pulse.check)
            log.info("engine_started", name=name, **info)
            self._running.add(name)
            del self._started[name]

    def settle(self) -> None:
        """Wait until engines that were taken over have finished what their former driver asked for, and lie down."""
        seconds = rollout_seconds(self._staff.spec)
        for worker in [worker for worker in self.workers if worker.name in self._adopted]:
            resting = worker.call("lie_down")
            if wait_for(resting, seconds, f"{worker.name} to finish", self._staff.pulse.check):
                self._running.add(worker.name)
            self._adopted.discard(worker.name)

    def replace(self, name: str) -> None:
        """End that engine, and let the spare or another process take its place."""
        if self._spare is not None and self._spare.name == name:
            lost, self._spare = self._spare, None
            self._staff.roster.end(lost)
            return
        index = next(i for i, worker in enumerate(self.workers) if worker.name == name)
        self._staff.roster.end(self.workers[index])
        self._running.discard(name)
        self._adopted.discard(name)
        self._started.pop(name, None)
        self.workers[index] = self._fill(self._places[index])
        self.replaced += 1

    def _fill(self, place: str) -> Worker:
        if self._spare is None:
            return self._host(place)
        worker, self._spare = self._spare, None
        worker.ask("sign", place)
        return worker

    def keep_spare(self) -> None:
        """Start a spare where there is none, without waiting for it."""
        if self._spare is None:
            self._spare = self._host(self._spare_place)

    def _host(self, place: str) -> Worker:
        roster = self._staff.roster
        name = next(name for name in self._names if name not in roster)
        return roster.start(name, place, EngineHost, {"num_gpus": 0}, self._settings, self._staff.threads)

    def call(self, method: str, seconds: float, *args: Any) -> list[Any]:
        return self.call_in_turn(seconds, (method, *args))

    def call_in_turn(self, seconds: float, *calls: tuple[Any, ...]) -> list[Any]:
        """Several calls, (method, *arguments) each, without a pause in between. Returns the last one's answers.

        seconds: deadline of each. Raises what the first that failed raised.
        """
        asked = [(method, [worker.call(method, *args) for worker in self.workers]) for method, *args in calls]
        last: list[Any] = []
        for method, answers in asked:
            what = f"the rollout engines to {method.replace('_', ' ')}"
            last = list(wait_for(answers, seconds, what, self._staff.pulse.check))
        return last


class Scorer:
    """The Ray worker that scores groups, as many at a time as it has processes."""

    def __init__(self, staff: Staff, volume: Volume, model_dir: Path, base_dir: str) -> None:
        self._staff = staff
        log_file = volume.logs / "rewards.log"
        self._arguments = (staff.spec.rewards, str(model_dir), base_dir, str(log_file), str(volume.root))
        self._signature = staff.signature(*self._arguments)
        adopted = staff.roster.adopt({REWARDS: [self._signature]})
        self.worker = adopted.get(REWARDS) or self._host()

    def _host(self) -> Worker:
        options = {"max_concurrency": self._staff.spec.rewards.processes + 1}
        return self._staff.roster.start(REWARDS, self._signature, RewardHost, options, *self._arguments)

    def start(self) -> None:
        """Load the reward functions where they are not, without waiting; needs the tokenizer in the model's folder."""
        self._started: Any = self.worker.call("start")

    def ready(self) -> None:
        """Raises RewardError for functions that cannot be loaded."""
        wait_for(self._started, START_SECONDS, "the reward functions to load", self._staff.pulse.check)

    def replace(self) -> None:
        self._staff.roster.end(self.worker)
        self.worker = self._host()
        self.start()
        self.ready()


def _rank_settings(staff: Staff, rank: int) -> RankSettings:
    return RankSettings(
        rank=rank,
        world=staff.spec.ranks,
        device_type="cuda" if staff.device_type == "cuda" else "cpu",
        sync_groups=sync_groups(staff.spec, staff.device_type),
        threads=staff.threads,
        collective_seconds=UPDATE_SECONDS,
    )


def sync_groups(spec: ResolvedSpec, device_type: str) -> tuple[tuple[int, ...], ...]:
    """Ranks that send weights together: those of one engine on GPUs, all of one node where memory is shared."""
    size = spec.rollout.tensor_parallel_size if device_type == "cuda" else spec.cluster.ranks_per_node
    return tuple(tuple(range(first, first + size)) for first in range(0, spec.ranks, size))


def engines_of(group: Sequence[int], spec: ResolvedSpec, engines: Sequence[Worker]) -> list[Worker]:
    """The engines that a sync group feeds: those that live on its ranks' devices."""
    size = spec.rollout.tensor_parallel_size
    return [engine for i, engine in enumerate(engines) if i * size in group]


def rollout_seconds(spec: ResolvedSpec) -> float:
    return parse_duration(spec.rollout.deadline)
