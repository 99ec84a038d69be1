"""One look at one job: observe, derive facts, decide, perform."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from rljob_operator.decide import broken, decide, foreign, not_taken, quota_back, refused
from rljob_operator.head.errors import HeadError
from rljob_operator.head.heads import Heads
from rljob_operator.kube.errors import AlreadyExists, KubeError, NotFound, Unavailable
from rljob_operator.kube.kinds import RLJOB, Key
from rljob_operator.observe.facts import Facts, derive
from rljob_operator.observe.gather import abandoned, observe, utc_now
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.perform.performer import Performer, Refused
from rljob_operator.plan import Plan
from rljob_operator.runtime.logging import severity
from rljob_operator.runtime.store import Store
from rljob_operator.settings import Settings

log = structlog.get_logger()

NAME_SECONDS = 30.0
"""At most, until a name that is taken is tried again: a person may wait, and no watch reports others' objects."""

FAILING_SECONDS = 10.0
"""From then on a failure of the API server is reported. Attempts do not count: a burst of news makes many at once."""


@dataclass(slots=True)
class Memory:
    """About one job, and nothing that a restart may not lose.

    status_written: when this process wrote its status last.
    foreign_logged: the log says that another operator manages the job.
    refusal: the refusal that was logged last.
    failing: since when, by the loop's clock, the API server or Ray's head fails at every attempt.
    """

    status_written: datetime | None = None
    foreign_logged: bool = False
    refusal: str | None = None
    failing: float | None = None


@dataclass(frozen=True, slots=True)
class Reconciler:
    """again: looks at a job again after so many seconds in any case. restarted: called with the reason of each restart
    that is charged to a job's budget. memories: of the jobs that exist.
    """

    store: Store
    heads: Heads
    performer: Performer
    settings: Settings
    again: Callable[[Key, float], None]
    restarted: Callable[[str], None]
    clock: Callable[[], datetime] = utc_now
    memories: dict[Key, Memory] = field(default_factory=dict)

    async def reconcile(self, key: Key) -> None:
        """Raises KubeErrors and HeadErrors, and any error of the operator's own code, which the status then reports:
        look again after a while, unless it asks for an earlier time.
        """
        if key.namespace in self.store.unreadable and self.store.get(RLJOB, key) is not None:
            return  # once the namespace can be listed again, its jobs are queued
        memory = self.memories.setdefault(key, Memory())
        snapshot = await observe(self.store, self.heads, key, self.clock, memory.status_written)
        if snapshot is None:
            self.memories.pop(key, None)
            self.heads.drop(key)
            await self.performer.release(key, quota_back(abandoned(self.store, key)))
            return
        self._log_foreign(key, memory, snapshot)
        try:
            await self._look(key, memory, derive(snapshot))
        except (KubeError, HeadError):
            raise
        except Exception as error:
            await self.performer.perform(snapshot, self._claimed(broken(snapshot.job, snapshot.now, error)))
            raise

    def _log_foreign(self, key: Key, memory: Memory, snapshot: Snapshot) -> None:
        if foreign(snapshot.job, self.settings) and not memory.foreign_logged:
            memory.foreign_logged = True
            log.warning("job_of_another_operator", job=str(key), operator_namespace=snapshot.job.status.operator)

    async def _look(self, key: Key, memory: Memory, facts: Facts) -> None:
        plan = decide(facts, self.settings)
        try:
            done = await self._carry_out(key, memory, facts, plan)
        except (KubeError, HeadError) as error:
            if isinstance(error, AlreadyExists):
                self.again(key, NAME_SECONDS)
            if plan.again_in is not None:  # no error delays a poll or a deadline; what was to follow at once may wait
                self.again(key, max(plan.again_in, self.settings.poll_seconds))
            raise
        if done.restart is not None:
            self.restarted(done.restart)
        if done.written is not None:
            memory.status_written = facts.now
        if done.status is not None or done.patch:  # no watch reports the operator's own write again
            self.again(key, 0.0)
        elif done.again_in is not None:
            self.again(key, done.again_in)

    async def _carry_out(self, key: Key, memory: Memory, facts: Facts, plan: Plan) -> Plan:
        """What was done: the plan, or what is left of it if an object is refused and the job goes on without it."""
        since, memory.failing = memory.failing, None  # until it fails again
        try:
            await self.performer.perform(facts.seen, plan)
        except Refused as refusal:
            return await self._report(key, memory, facts, plan, refusal, since)
        memory.refusal = None
        return plan

    async def _report(
        self, key: Key, memory: Memory, facts: Facts, plan: Plan, refusal: Refused, since: float | None
    ) -> Plan:  # fmt: skip
        """What is left of the plan, done. Raises the error if the job does not go on. since: as in `_lasts`."""
        error, seen = refusal.error, _at(facts, refusal.version)
        if not _lasts(memory, error, since):
            raise error from None
        if isinstance(error, HeadError):
            await self.performer.perform(seen, self._claimed(not_taken(facts, plan, f"{error}")))
            raise error from None
        rest = self._claimed(refused(facts, plan, error))
        _log_refusal(key, memory, error)
        try:
            await self.performer.perform(seen, rest)
        except Refused as another:  # of Ray: nothing is left that the API server could refuse
            return await self._report(key, memory, facts, plan, another, since)
        if rest.again_in is None:
            raise error from None
        return rest

    def _claimed(self, plan: Plan) -> Plan:
        """The first write of a status also says which operator manages the job (`foreign`)."""
        if plan.status is None:
            return plan
        return replace(plan, status=plan.status.model_copy(update={"operator": self.settings.operator_namespace}))


def _lasts(memory: Memory, error: KubeError | HeadError, since: float | None) -> bool:
    """Whether the status reports it: a refusal at once, a server that fails or does not answer after a while.

    since: when it failed first, if the previous attempt failed as well.
    """
    if not isinstance(error, NotFound | Unavailable) and error.status is not None:
        return True
    now = asyncio.get_running_loop().time()
    memory.failing = now if since is None else since
    return now - memory.failing >= FAILING_SECONDS


def _log_refusal(key: Key, memory: Memory, error: KubeError) -> None:
    """Once while it lasts, however often it is tried."""
    level = logging.DEBUG if memory.refusal == error.message else severity(error)
    log.log(level, "object_refused", job=str(key), asked=error.asked, reason=error.reason, message=error.message)
    memory.refusal = error.message
    error.logged = True


def _at(facts: Facts, version: str) -> Snapshot:
    """After the patch of the finalizers: a status with the older version would end in a conflict."""
    return replace(facts.seen, job=replace(facts.job, resource_version=version))
