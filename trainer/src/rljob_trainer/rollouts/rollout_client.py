"""The driver's client of the rollout host."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import structlog

from rljob_trainer.rollouts.calls import HostInfo, News
from rljob_trainer.rollouts.rollout_host import RolloutHost, RolloutProcess, RolloutSettings
from rljob_trainer.workers.context import START_SECONDS, SYNC_SECONDS, WorkerContext
from rljob_trainer.workers.placement import options
from rljob_trainer.workers.waiting import wait_for
from rljob_trainer.workers.worker import Answer, Worker

log = structlog.get_logger()

P = ParamSpec("P")
R = TypeVar("R")

NAME = "rewards"
"""The worker's name; the kind of its loss follows from it (heartbeats.py)."""


class RolloutClient:
    """One rollout host, taken over from a former driver or started.

    attempt: this driver's. from_version: the newest durable checkpoint's: the journal counts from there.
    """

    def __init__(self, context: WorkerContext, settings: RolloutSettings, attempt: int, from_version: int) -> None:
        self._context, self._settings = context, settings
        self._attempt, self._from_version = attempt, from_version
        self._signature = context.signature(settings)
        adopted = context.roster.adopt({NAME: [self._signature]})
        self.worker: Worker[RolloutProcess] = adopted.get(NAME) or self._host()
        self._starting: Answer[HostInfo] | None = None

    def load(self) -> None:
        """Load the reward functions and the journal, without waiting; needs the tokenizer in the model's folder."""
        self._starting = self.worker.call(RolloutProcess.start, self._attempt, self._from_version)

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

    def ask(self, method: Callable[Concatenate[RolloutProcess, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a method of the host and wait for its value."""
        return self.wait(self.worker.call(method, *args, **kwargs))

    def news(self, order: int, seen: int, seconds: float, enough: int | None = None) -> News:
        """RolloutProcess.news, beside its other work."""
        return self.wait(self.worker.call_beside("background", RolloutProcess.news, order, seen, seconds, enough))

    def wait(self, answer: Answer[R]) -> R:
        """Raises RewardsLost if the host is lost, else what it raised."""
        heartbeats = self._context.heartbeats
        return wait_for(answer, SYNC_SECONDS, "the rollout host to answer", heartbeats.check, heartbeats.doing)

    def _host(self) -> Worker[RolloutProcess]:
        on_node = options(self._context.placement.of_rank(0))
        return self._context.roster.start(NAME, self._signature, RolloutHost, on_node, NAME, self._settings)
