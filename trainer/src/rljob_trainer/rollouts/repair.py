"""What the driver mends by itself: engines and the scorer. All else is its supervisor's."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import structlog

from rljob_api.recovery import DRIVER_LEVELS, Action, Component, Failure, History, decide_recovery
from rljob_api.v1alpha1.recovery import Recovery
from rljob_trainer.errors import EngineLost, InfrastructureError, RankLost, WorkerLost
from rljob_trainer.rollouts.engine_group import EngineGroup
from rljob_trainer.workers.groups import Scorer
from rljob_trainer.workers.heartbeats import Heartbeats

log = structlog.get_logger()

T = TypeVar("T")


class Repair:
    """Replaces an engine or the scorer that is lost, as the recovery policy says.

    worth_spare: the job has lost or saved something already, so a spare engine is worth its memory.
    """

    def __init__(
        self, policy: Recovery, engines: EngineGroup, scorer: Scorer, heartbeats: Heartbeats, *, worth_spare: bool
    ) -> None:
        self._policy, self._engines, self._scorer, self._heartbeats = policy, engines, scorer, heartbeats
        self._worth_spare = worth_spare
        self._times: Counter[str] = Counter()

    def run(self, work: Callable[[], T]) -> T:
        """Do `work`, and again after repairs, each of which may show another loss. Raises what cannot be mended here.

        A repair that was cut off is begun anew.
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
                lost = error if isinstance(error, WorkerLost) else self._heartbeats.diagnose()
                if lost is None:
                    raise
                repairs[lost.worker] = self._repair(lost)

    def durable(self) -> None:
        """There is a new durable checkpoint: what was lost before is forgotten."""
        self._times.clear()
        self._worth_spare = True

    def step_done(self) -> None:
        """Everything works, so nothing urgent is held up by a spare's start.

        Where a spare dies, perhaps for want of memory, there is no other before the next checkpoint or loss.
        """
        self._worth_spare = self._worth_spare and self._engines.keep_spare()

    def _repair(self, lost: WorkerLost) -> Callable[[], None]:
        """What the policy says. Raises `lost` where that is another's to do."""
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
            return self._scorer.replace
        raise lost
