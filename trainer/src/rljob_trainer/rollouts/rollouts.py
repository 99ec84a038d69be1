"""From tasks to scored groups: the one client of the rollout host and the one owner of the engines.

    collect(order) ── begin ──> rollout host ── requests ──> engines        they hold the policy: ready()
                   <── news ───      │       <─ completions ─┘
                                     └─ scorer, journal, groups             tensors stay in Ray's object store
    sync(policy)   ranks ── weights ──> engines, then the probe
    use(...)       the journal's record of what an update uses

The host journals a group before it reports it. A lost engine costs the samples that it was generating; a lost host
costs the episodes that it was playing. Either is replaced, and the order goes on.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

import structlog

from rljob_trainer.engines.engine_host import EngineProcess
from rljob_trainer.errors import EngineLost, InfrastructureError
from rljob_trainer.journal import Used
from rljob_trainer.rank.results import Updated
from rljob_trainer.rollouts.calls import NO_CACHE_USE, CacheUse, GroupRef, Order, PolicyName
from rljob_trainer.rollouts.engine_client import EngineClient
from rljob_trainer.rollouts.repair import Repair
from rljob_trainer.rollouts.rollout_client import RolloutClient
from rljob_trainer.rollouts.rollout_host import RolloutProcess
from rljob_trainer.rollouts.weight_sync import Synced, WeightSync
from rljob_trainer.workers.heartbeats import Heartbeats
from rljob_trainer.workers.worker import Pending, Worker

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How long one question for news waits."""


Missing = Callable[[list[GroupRef]], int]


@dataclass(frozen=True, slots=True)
class Rollout:
    """What an order gave. groups: one for each task, in their order; some are missing if others were enough.

    finished: ids of their tasks, in the order in which they were finished.
    generate_seconds: until the last turn was finished.
    journaled: groups that were made before: by an earlier attempt, or before a loss.
    cache: what engines had of its prompts; only of the last host, if one was lost.
    engine_seconds: of generate_seconds, those in which an engine had requests, the mean over engines.
    """

    groups: list[GroupRef]
    generate_seconds: float
    journaled: int
    finished: list[str] = field(default_factory=list)
    cache: CacheUse = NO_CACHE_USE
    engine_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Begun:
    """Weights on their way. finish: waits for them; None where every engine has them."""

    policy: PolicyName
    engines: list[Worker[EngineProcess]]
    finish: Callable[[], Synced] | None


class Rollouts:
    """Makes groups, whatever happens to the engines and the rollout host meanwhile.

    phase: times a part of the step (Reporting.phase).
    shares_memory: engines and ranks take turns on their GPUs: engines lose their weights when they sleep.
    seconds: deadline of one order.
    """

    def __init__(
        self, engines: EngineClient, host: RolloutClient, weights: WeightSync, repair: Repair, *,
        heartbeats: Heartbeats, phase: Callable[[str], AbstractContextManager[None]], shares_memory: bool,
        seconds: float,
    ) -> None:  # fmt: skip
        self._engines, self._host, self._weights, self._repair = engines, host, weights, repair
        self._heartbeats, self._phase = heartbeats, phase
        self._shares_memory, self._seconds = shares_memory, seconds
        self._held: dict[str, PolicyName] = {}  # by identity of the engine
        self._attached: object = None
        self._begun: _Begun | None = None

    def settle(self, *, generates_first: bool) -> bool:
        """Wait until the reward code is loaded and engines that were taken over sleep; let the others start.

        generates_first: ranks load, and engines then generate before ranks train: both may take memory of a GPU at
        once. If ranks train first, or replay updates, engines of their GPUs start when they are needed.
        Returns whether the journal holds episodes.
        """
        made = self._repair.run(self._host.ready).made
        self._repair.run(self._engines.settle)
        if not self._shares_memory or (generates_first and not made):
            self._engines.start(beside=True)
        return made > 0

    # ------------------------------------------------------------------ groups

    def collect(self, order: Order, missing: Missing | None = None) -> Rollout:
        """One scored group for each task, in their order.

        missing: how many groups are to come still, given those that came; at 0 the others are aborted. None: all are.
        Raises InfrastructureError at the deadline, RewardError as the policy of the reward says.
        """
        deadline = time.monotonic() + self._seconds
        return self._repair.run(
            lambda: self._collect(order, deadline, missing or (lambda groups: len(order.tasks) - len(groups)))
        )

    def _collect(self, order: Order, deadline: float, missing: Missing) -> Rollout:
        number = self._host.ask(RolloutProcess.begin, order)
        news = self._host.news(number, 0, 0.0)
        groups = {group.summary.task_id: group for group in news.groups}
        if self._incomplete(order, groups, missing):
            self.ready(order.policy)
        while self._incomplete(order, groups, missing):
            enough = len(groups) + missing(list(groups.values()))
            news = self._host.news(number, len(groups), LOOK_SECONDS, enough)
            groups |= {group.summary.task_id: group for group in news.groups}
            if news.engine_failed is not None:
                name, reason = news.engine_failed
                raise EngineLost(f"{name} failed: {reason}", worker=name)
            if not news.groups:
                self._heartbeats.check()
                if time.monotonic() > deadline:
                    raise self._late(order, len(groups))
        if len(groups) < len(order.tasks):
            self._host.ask(RolloutProcess.abort, number)
        in_order = [groups[task.id] for task in order.tasks if task.id in groups]
        journaled = sum(group.journaled for group in in_order)
        return Rollout(in_order, news.generated, journaled, list(groups), news.cache, news.engine_seconds)

    def _incomplete(self, order: Order, groups: dict[str, GroupRef], missing: Missing) -> bool:
        return len(groups) < len(order.tasks) and missing(list(groups.values())) > 0

    def _late(self, order: Order, made: int) -> InfrastructureError:
        return InfrastructureError(
            f"{len(order.tasks) - made} of {len(order.tasks)} groups are missing at spec.rollout.deadline: "
            f"raise it if they take that long ({self._heartbeats.doing()})"
        )

    # ------------------------------------------------------------------ the journal

    def step_used(self, digest: str, fingerprint: str) -> Used | None:
        """What the update of the policy `digest` used, if it was begun before under the same settings."""
        return self._repair.run(lambda: self._host.ask(RolloutProcess.step_used, digest, fingerprint))

    def find(self, order: Order) -> list[GroupRef]:
        """The groups of an order that were made before."""
        return self._repair.run(lambda: self._host.ask(RolloutProcess.find, order))

    def use(self, used: Used) -> Callable[[], None]:
        """Begin to record what an update uses. Returns what waits until that is durable; the update begins then.

        A host that is lost meanwhile is replaced, and the next one records it.
        """
        asked = self._host.worker
        answer = asked.call(RolloutProcess.use, used)

        def recorded() -> None:
            now = self._host.worker
            self._host.wait(answer if now is asked else now.call(RolloutProcess.use, used))

        return partial(self._repair.run, recorded)

    # ------------------------------------------------------------------ engines

    def ready(self, policy: PolicyName) -> Synced | None:
        """All engines run, hold `policy` and are attached to the host. Returns None if they held it already.

        Raises EngineLost for an engine that is to be replaced.
        """
        if not self._engines.running:
            with self._phase("start"):
                self._engines.ready()
        synced = self._sync(policy)
        attached = policy, [worker.identity for worker in self._engines.workers], self._host.worker.identity
        if self._attached != attached:
            self._host.ask(RolloutProcess.attach, self._engines.workers, policy)
            self._attached = attached
        return synced

    def sync(self, policy: PolicyName) -> Synced | None:
        """As `ready`; engines and the rollout host that are lost are replaced."""
        return self._repair.run(lambda: self.ready(policy))

    def begin_sync(self, policy: PolicyName, update: Pending[Updated]) -> None:
        """Have the ranks send the policy behind the update that makes it; `ready` waits for it. Raises nothing."""
        if self._engines.running:
            self._begun = self._begin(policy, update)

    def _begin(self, policy: PolicyName, update: Pending[Updated] | None = None) -> _Begun:
        """To the engines that lack it: those that hold it may be generating."""
        lacking = [worker for worker in self._engines.workers if self._held.get(worker.identity) != policy]
        return _Begun(policy, lacking, self._weights.begin(policy.version, lacking, update) if lacking else None)

    def _sync(self, policy: PolicyName) -> Synced | None:
        begun, self._begun = self._begun, None
        fits = begun is not None and begun.policy == policy and all(e in self._engines.workers for e in begun.engines)
        now = begun if begun is not None and fits else self._begin(policy)
        if now.finish is None:
            return None
        for worker in now.engines:
            self._held.pop(worker.identity, None)
        synced = now.finish()
        self._held |= {worker.identity: policy for worker in now.engines}
        return synced

    def sleep(self) -> None:
        """Leave the GPUs to the ranks."""
        if self._shares_memory and self._held:
            self._repair.run(self._sleep)

    def _sleep(self) -> None:
        if self._held:
            self._host.ask(RolloutProcess.attach, [], next(iter(self._held.values())))
        self._held, self._attached = {}, None
        self._engines.sleep()

    # ------------------------------------------------------------------ repairs

    def step_done(self) -> None:
        """A step is done: the time to start a spare engine, if one is worth it."""
        self._repair.step_done()

    def durable(self) -> None:
        """A new checkpoint is durable: earlier losses are forgotten."""
        self._repair.durable()
