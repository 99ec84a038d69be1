"""One look at one job: observe, decide, perform."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from rljob_api.conditions import Reason
from rljob_operator.decide import broken, decide, foreign, is_looked_after, not_taken, refused, unfound
from rljob_operator.head import HeadError
from rljob_operator.head.heads import Heads
from rljob_operator.kube.errors import AlreadyExists, Forbidden, KubeError, NotFound, Unavailable
from rljob_operator.kube.kinds import RAY_CLUSTER, RLJOB, Key, Manifest, Ref
from rljob_operator.observe.cluster import counts_more
from rljob_operator.observe.gather import observe, unseen, utc_now
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.perform.performer import NotTaken, Performer, Refused
from rljob_operator.plan import Plan
from rljob_operator.runtime.logging import severity
from rljob_operator.runtime.store import Store
from rljob_operator.settings import Settings

log = structlog.get_logger()

NAME_SECONDS = 30.0
"""Until a name that is taken is tried again, at most: whoever frees it waits, and no watch tells of others' objects."""

FAILING_SECONDS = 10.0
"""What the API server fails at for so long is no matter of a moment. Tries are not counted: news that come in a burst
make many of them at once.
"""


@dataclass(slots=True)
class Memory:
    """Of one job, and nothing that a restart may not lose. told: when we wrote its status last. left: we have said that
    another operator looks after it. gone: its RayCluster, where there was none by its name. astray: pods of it have
    lost our label. refusal: why an object of it was refused last, which we have said. failing: since when by the loop's
    clock the API server or Ray's head fails at what is asked, try after try.
    """

    told: datetime | None = None
    left: bool = False
    gone: Ref | None = None
    astray: bool = False
    refusal: str | None = None
    failing: float | None = None


@dataclass(frozen=True, slots=True)
class Reconciler:
    """again: told to look at a job again after so many seconds, whatever happens. restarted: told why, each time that
    another attempt is charged to a job's budget. memories: of the jobs that are there.
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
        """Raises KubeErrors and HeadErrors, and whatever else our own code may raise, which the status then says: look
        again after a while, if it does not ask for an earlier time.
        """
        if key.namespace in self.store.unreadable and self.store.get(RLJOB, key) is not None:
            return  # whoever may list the namespace again names its jobs
        snapshot = await observe(self.store, self.heads, key, self.clock)
        if snapshot is None:
            self.memories.pop(key, None)
            self.heads.drop(key)
            return
        memory = self.memories.setdefault(key, Memory())
        if foreign(snapshot.job, self.settings) and not memory.left:
            memory.left = True
            log.warning("job_of_another_operator", job=str(key), operator_namespace=snapshot.job.status.operator)
        try:
            completed = await self._completed(key, memory, snapshot)
            if completed is not None:
                await self._look(key, memory, completed)
        except (KubeError, HeadError):
            raise
        except Exception as error:
            await self.performer.perform(snapshot, self._claimed(broken(snapshot, error)))
            raise

    async def _completed(self, key: Key, memory: Memory, snapshot: Snapshot) -> Snapshot | None:
        """What has lost our label is no loss, so it is looked for by its name before anything is decided. None where
        the job went meanwhile: its news are on their way.
        """
        seen: Snapshot | None = snapshot
        if is_looked_after(snapshot.job, self.settings):
            try:
                strays = await self._strays(key, memory, snapshot)
            except (Forbidden, Unavailable) as error:
                if _lasts(memory, error, memory.failing):
                    _tell_refusal(key, memory, error)
                    await self.performer.perform(snapshot, self._claimed(unfound(snapshot, error)))
                raise
            if strays:
                seen = await observe(self.store, self.heads, key, self.clock, strays)
        return None if seen is None else replace(seen, told=memory.told)

    async def _strays(self, key: Key, memory: Memory, snapshot: Snapshot) -> list[Manifest]:
        """Pods as well, where KubeRay counts some that we do not see, until all are gone or have the label again."""
        found = [each for ref in unseen(snapshot) for each in await self._found(memory, snapshot, ref)]
        if not (found or counts_more(snapshot) or memory.astray):
            return []
        pods = await self.performer.find_pods(snapshot.job)
        memory.astray = bool(pods)
        if pods:
            self.again(key, self.settings.poll_seconds)  # no watch tells of them
        return [*found, *pods]

    async def _found(self, memory: Memory, snapshot: Snapshot, ref: Ref) -> list[Manifest]:
        """A RayCluster that is gone is asked for once, however long its pods take to end."""
        if memory.gone == ref:
            return []
        found = await self.performer.find(snapshot.job, ref)
        if not found and ref.kind == RAY_CLUSTER:
            memory.gone = ref
        return found

    async def _look(self, key: Key, memory: Memory, snapshot: Snapshot) -> None:
        plan = decide(snapshot, self.settings)
        try:
            done = await self._carry_out(key, memory, snapshot, plan)
        except (KubeError, HeadError) as error:
            if isinstance(error, AlreadyExists) or _lacks_a_name(snapshot):
                self.again(key, NAME_SECONDS)
            if plan.again_in is not None:  # no error puts off a poll or a deadline; what was to follow at once may wait
                self.again(key, max(plan.again_in, self.settings.poll_seconds))
            raise
        if done.restart is not None:
            self.restarted(done.restart)
        if done.told is not None:
            memory.told = snapshot.now
        if done.status is not None:  # no watch tells us again what we have written ourselves
            self.again(key, 0.0)
        elif done.again_in is not None:
            self.again(key, done.again_in)

    async def _carry_out(self, key: Key, memory: Memory, snapshot: Snapshot, plan: Plan) -> Plan:
        """What was done: the plan, or what is left of it where an object is refused and the job goes on without it."""
        since, memory.failing = memory.failing, None  # until it fails again
        try:
            return await self._perform(key, memory, snapshot, plan, since)
        except NotTaken as refusal:  # also of what is left of it
            if _lasts(memory, refusal.error, since):
                said = self._claimed(not_taken(snapshot, plan, f"{refusal}"))
                await self.performer.perform(_at(snapshot, refusal.version), said)
            raise refusal.error from None

    async def _perform(
        self, key: Key, memory: Memory, snapshot: Snapshot, plan: Plan, since: float | None
    ) -> Plan:  # fmt: skip
        """Raises NotTaken. since: as `_lasts` has it."""
        try:
            await self.performer.perform(snapshot, plan)
        except Refused as refusal:
            if not _lasts(memory, refusal.error, since):
                raise refusal.error from None
            error, rest = refusal.error, self._claimed(refused(snapshot, plan, refusal.error))
            _tell_refusal(key, memory, error)
            await self.performer.perform(_at(snapshot, refusal.version), rest)
            if rest.again_in is None:
                raise error from None
            return rest
        memory.refusal = None
        return plan

    def _claimed(self, plan: Plan) -> Plan:
        """Whatever is written into a status first says too whose the job is (`foreign`)."""
        if plan.status is None:
            return plan
        return replace(plan, status=plan.status.model_copy(update={"operator": self.settings.operator_namespace}))


def _lasts(memory: Memory, error: KubeError | HeadError, since: float | None) -> bool:
    """Whether it is worth telling: what the API server fails at, or a head that gives no answer, may be a matter of a
    moment; a refusal is none.

    since: when it failed first, if it did so in the try before as well.
    """
    if not isinstance(error, NotFound | Unavailable) and error.status is not None:
        return True
    now = asyncio.get_running_loop().time()
    memory.failing = now if since is None else since
    return now - memory.failing >= FAILING_SECONDS


def _tell_refusal(key: Key, memory: Memory, error: KubeError) -> None:
    """Once while it lasts, however often it is tried; who hears of the error then need not tell of it again."""
    level = logging.DEBUG if memory.refusal == error.message else severity(error)
    log.log(level, "object_refused", job=str(key), asked=error.asked, reason=error.reason, message=error.message)
    memory.refusal = error.message
    error.told = True


def _lacks_a_name(snapshot: Snapshot) -> bool:
    """It did when we looked last: what else fails now, as the connection, must not have the name wait for it."""
    ready = snapshot.job.condition("Ready")
    return ready is not None and ready.reason == Reason.NAME_TAKEN


def _at(snapshot: Snapshot, version: str) -> Snapshot:
    """After our own patch of the finalizers: what is said with the older version is lost in a conflict."""
    return replace(snapshot, job=replace(snapshot.job, resource_version=version))
