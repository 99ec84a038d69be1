"""The driver's client of the rollout host."""

from collections.abc import Sequence
from typing import TypeVar

import structlog

from rljob_trainer.engines.calls import EngineCalls
from rljob_trainer.errors import InfrastructureError, RewardsLost, WorkerLost
from rljob_trainer.journal import Used
from rljob_trainer.rollouts.calls import GroupRef, HostInfo, News, Order, PolicyName, RolloutCalls
from rljob_trainer.rollouts.rollout_host import RolloutHost, RolloutSettings
from rljob_trainer.workers.context import START_SECONDS, SYNC_SECONDS, WorkerContext
from rljob_trainer.workers.placement import options
from rljob_trainer.workers.waiting import wait_for
from rljob_trainer.workers.worker import Answer, Worker

log = structlog.get_logger()

T = TypeVar("T")

NAME = "rewards"
"""The worker's name; the kind of its loss follows from it (heartbeats.py)."""

LOOK_SECONDS = 1.0
"""How long one question for news waits."""


class RolloutClient:
    """One rollout host, taken over from a former driver or started.

    attempt: this driver's. from_version: the newest durable checkpoint's: the journal counts from there.
    """

    def __init__(self, context: WorkerContext, settings: RolloutSettings, attempt: int, from_version: int) -> None:
        self._context, self._settings = context, settings
        self._attempt, self._from_version = attempt, from_version
        self._signature = context.signature(settings)
        adopted = context.roster.adopt({NAME: [self._signature]})
        self.worker: Worker[RolloutCalls] = adopted.get(NAME) or self._host()
        self._starting: Answer[HostInfo] | None = None

    def load(self) -> None:
        """Load the reward functions and the journal, without waiting; needs the tokenizer in the model's folder."""
        self._starting = self.worker.call(RolloutCalls.start, self._attempt, self._from_version)

    def ready(self) -> HostInfo:
        """Wait until it is loaded. Raises RewardError for functions that cannot be loaded."""
        if self._starting is None:
            self.load()
        assert self._starting is not None
        info = wait_for(self._starting, START_SECONDS, "the reward functions to load", self._context.heartbeats.check)
        if info.damaged:
            log.warning("journal_damaged", files=", ".join(info.damaged))
        return info

    def replace(self) -> None:
        """End it and start another one: the episodes that it played are lost, the journal is not."""
        self._context.roster.end(self.worker)
        self.worker = self._host()
        self.load()
        self.ready()

    def attach(self, engines: Sequence[Worker[EngineCalls]], policy: PolicyName) -> None:
        self._wait(self.worker.call(RolloutCalls.attach, engines, policy), "to take the engines")

    def begin(self, order: Order) -> int:
        return self._wait(self.worker.call(RolloutCalls.begin, order), "to begin an order")

    def news(self, order: int, seen: int, *, wait: bool = True) -> News:
        """Groups behind the first `seen`; waits up to LOOK_SECONDS for some. Raises what ended the order."""
        seconds = LOOK_SECONDS if wait else 0.0
        asked = self.worker.call_beside("background", RolloutCalls.news, order, seen, seconds)
        return self._wait(asked, "to report groups")

    def step_used(self, digest: str, fingerprint: str) -> Used | None:
        return self._wait(self.worker.call(RolloutCalls.step_used, digest, fingerprint), "to look into the journal")

    def find(self, order: Order) -> list[GroupRef]:
        return self._wait(self.worker.call(RolloutCalls.find, order), "to look into the journal")

    def begin_use(self, used: Used) -> Answer[None]:
        """Record what an update uses; the update waits for the answer."""
        return self.worker.call(RolloutCalls.use, used)

    def finish_use(self, recording: Answer[None]) -> None:
        self._wait(recording, "to write the journal")

    def _host(self) -> Worker[RolloutCalls]:
        on_node = options(self._context.placement.of_rank(0))
        return self._context.roster.start(NAME, self._signature, RolloutHost, on_node, NAME, self._settings)

    def _wait(self, answer: Answer[T], what: str) -> T:
        """Raises RewardsLost where the host is lost, else what it raised."""
        heartbeats = self._context.heartbeats
        try:
            return wait_for(answer, SYNC_SECONDS, f"the rollout host {what}", heartbeats.check)
        except WorkerLost:
            raise
        except InfrastructureError as error:
            if heartbeats.died(NAME):
                raise RewardsLost(f"{NAME} died: {error.message}", worker=NAME) from error
            raise
