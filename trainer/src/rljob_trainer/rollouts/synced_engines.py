"""All engines as one: started, awake and with the policy's weights, whenever somebody needs them to generate."""

from collections.abc import Callable

import structlog

from rljob_trainer.loop.reporting import Reporting
from rljob_trainer.loop.state import LoopState
from rljob_trainer.rank.client import Pending
from rljob_trainer.rank.results import Updated
from rljob_trainer.rollouts.engine_group import EngineGroup
from rljob_trainer.rollouts.repair import Repair
from rljob_trainer.rollouts.weight_sync import Synced, WeightSync
from rljob_trainer.workers.context import SYNC_SECONDS

log = structlog.get_logger()


class SyncedEngines:
    """shares_memory: engines and ranks take turns on their GPUs, so engines lose their weights when they sleep."""

    def __init__(
        self, engines: EngineGroup, sync: WeightSync, repair: Repair, state: LoopState, reporting: Reporting, *,
        shares_memory: bool,
    ) -> None:  # fmt: skip
        self._engines, self._sync, self._repair, self._state = engines, sync, repair, state
        self._reporting, self._shares_memory = reporting, shares_memory
        self._held: tuple[str, int] | None = None
        self._begun: tuple[tuple[str, int], Callable[[], Synced]] | None = None
        if not shares_memory:
            engines.start()  # while ranks replay updates, say

    def begin_sync(self, update: Pending[Updated]) -> None:
        """Have the ranks send the policy behind the update that makes it; `ready` waits for it. Raises nothing."""
        if self._engines.running:
            self._begun = self._wanted(), self._sync.begin(self._state.step, update)

    def _wanted(self) -> tuple[str, int]:
        """What engines that are ready hold: the policy, in as many replacements."""
        return self._state.policy_digest, self._engines.replaced

    def hold_policy(self) -> Synced | None:
        """Give all engines the policy as it is; replaces those that are lost. Returns None where they had it."""
        return self._repair.run(self.ready)

    def ready(self) -> Synced | None:
        """As hold_policy, but raises EngineLost for whoever mends."""
        if not self._engines.running:
            with self._reporting.phase("start"):
                self._engines.ready()
        wanted, begun = self._wanted(), self._begun
        if self._held == wanted:
            return None
        self._held = self._begun = None
        finish = begun[1] if begun is not None and begun[0] == wanted else self._sync.begin(self._state.step)
        synced = finish()
        self._held = wanted
        return synced

    def sleep(self) -> None:
        """Leave the GPUs to the ranks."""
        if self._shares_memory and self._held is not None:
            self._held = None
            self._repair.run(lambda: self._engines.call("sleep", SYNC_SECONDS))
