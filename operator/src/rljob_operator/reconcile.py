"""One look at one job: observe, decide, perform."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from rljob_operator.decide import broken, decide, not_submitted, refused
from rljob_operator.head import HeadError
from rljob_operator.heads import Heads
from rljob_operator.kube.errors import KubeError
from rljob_operator.kube.kinds import Key
from rljob_operator.observe import observe, utc_now
from rljob_operator.perform import NotSubmitted, Performer, Refused
from rljob_operator.settings import Settings
from rljob_operator.snapshot import Snapshot
from rljob_operator.store import Store

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reconciler:
    """restarted: told why, each time that another attempt is charged to a job's budget. told: when we wrote a job's
    status last.
    """

    store: Store
    heads: Heads
    performer: Performer
    settings: Settings
    restarted: Callable[[str], None]
    clock: Callable[[], datetime] = utc_now
    told: dict[Key, datetime] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> float | None:
        """Seconds after which to look again whatever happens, None to wait for news.

        Raises KubeErrors and HeadErrors, and whatever else our own code may raise, which the status then says: look
        again after a while.
        """
        snapshot = await observe(self.store, self.heads, key, self.clock)
        if snapshot is None:
            self.told.pop(key, None)
            self.heads.drop(key)
            return None
        snapshot = replace(snapshot, told=self.told.get(key))
        try:
            return await self._look(key, snapshot)
        except (KubeError, HeadError):
            raise
        except Exception as error:
            await self.performer.perform(snapshot, broken(snapshot, error))
            raise

    async def _look(self, key: Key, snapshot: Snapshot) -> float | None:
        plan = decide(snapshot, self.settings)
        try:
            await self.performer.perform(snapshot, plan)
        except Refused as refusal:
            error = refusal.error
            log.warning("object_refused", job=str(key), reason=error.reason, message=error.message)
            await self.performer.perform(snapshot, refused(snapshot, plan, error))
            raise error from None
        except NotSubmitted as refusal:
            await self.performer.perform(snapshot, not_submitted(snapshot, f"{refusal}"))
            raise refusal.error from None
        if plan.restart is not None:
            self.restarted(plan.restart)
        if plan.told is not None:
            self.told[key] = snapshot.now
        return plan.again_in if plan.status is None else 0.0  # no watch tells us again what we have written ourselves
