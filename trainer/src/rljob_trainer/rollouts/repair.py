"""What the driver repairs by itself: engines and the rollout host. All else is its supervisor's task."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

import structlog

from rljob_api.recovery import DRIVER_LEVELS, Action, Component, Failure, History, decide_recovery
from rljob_api.v1alpha1.recovery import Recovery
from rljob_trainer.errors import EngineLost, InfrastructureError, RankLost, WorkerLost

log = structlog.get_logger()

T = TypeVar("T")


class Engines(Protocol):
    """Engines by name; each has a place that stays when another process fills it."""

    def place(self, name: str) -> str: ...

    def replace(self, name: str) -> None: ...

    def keep_spare(self) -> bool: ...


class Repair:
    """Replaces an engine or the rollout host that is lost, as the recovery policy says.

    diagnose: names the worker that is lost, if one is (Heartbeats.diagnose).
    worth_spare: the job has lost or saved something already, so a spare engine is worth its memory.
    """

    def __init__(
        self, policy: Recovery, engines: Engines, replace_host: Callable[[], None],
        diagnose: Callable[[], WorkerLost | None], *, worth_spare: bool,
    ) -> None:  # fmt: skip
        self._policy, self._engines, self._replace_host, self._diagnose = policy, engines, replace_host, diagnose
        self._worth_spare = worth_spare
        self._times: Counter[str] = Counter()

    def run(self, work: Callable[[], T]) -> T:
        """Do `work`, and again after repairs, each of which may show another loss. Raises what cannot be repaired here.

        A repair that was cut off begins again.
        """
        repairs: dict[str, Callable[[], None]] = {}
        while True:
            try:
                while repairs:
                    worker, repair = next(reversed(repairs.items()))
                    repair()
                    del repairs[worker]
                return work()
            except InfrastructureError as error:
                lost = error if isinstance(error, WorkerLost) else self._diagnose()
                if lost is None:
                    raise
                repairs[lost.worker] = self._repair(lost)

    def durable(self) -> None:
        """A new checkpoint is durable: earlier losses are forgotten."""
        self._times.clear()
        self._worth_spare = True

    def step_done(self) -> None:
        """A step is done, so the start of a spare delays nothing urgent.

        If a spare dies, perhaps for want of memory, no other starts before the next checkpoint or loss.
        """
        self._worth_spare = self._worth_spare and self._engines.keep_spare()

    def _repair(self, lost: WorkerLost) -> Callable[[], None]:
        """What the policy says. Raises `lost` if that is another's to do."""
        if isinstance(lost, RankLost):
            raise lost
        engine = isinstance(lost, EngineLost)
        who = f"engine {self._engines.place(lost.worker)}" if engine else lost.worker
        self._times[who] += 1
        self._worth_spare = True
        component = Component.ENGINE if engine else Component.REWARD
        reason = type(lost).__name__
        failure = Failure(component, reason, lost.message, times=self._times[who])
        decision = decide_recovery(failure, History(), self._policy, DRIVER_LEVELS)
        log.warning("worker_lost", worker=lost.worker, action=str(decision.action), reason=lost.message)
        if decision.action is Action.REPLACE_ENGINE:
            return partial(self._engines.replace, lost.worker)
        if decision.action is Action.RETRY_SAMPLE:
            return self._replace_host
        raise lost
