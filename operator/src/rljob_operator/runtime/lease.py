"""One leader at a time, by a coordination.k8s.io Lease.

    renew begins ── record written ────────────── renew deadline ──────── lease duration
    │               │                             │                       │
    the leader      others see the change         the leader writes       others take over
    counts from     and count from here           nothing any more        not before here
    here            or later

Each side counts by its own clock, from what it did or saw itself; the times in the record are for people. So skewed
clocks do not matter, and neither does a leader that was frozen: its clock continues, and the fence reads the clock.
"""

import asyncio
import random
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from rljob_operator.kube.client import Kube
from rljob_operator.kube.errors import Conflict, Fenced, KubeError, NotFound
from rljob_operator.kube.kinds import LEASE, Manifest, Ref

log = structlog.get_logger()

_NEVER = float("-inf")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # continues while the machine sleeps, if it exists


def steady_clock() -> float:
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class Terms:
    """Seconds. duration: of silence, after which others take over. renew_deadline: without a renewal, after which the
    leader stops. retry: between two tries, of leader and candidates.
    """

    duration: int = 15
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.duration > self.renew_deadline > self.retry > 0:
            raise ValueError(f"a lease needs duration > renew deadline > retry > 0, not {self}")


class LeaderLease:
    """acquire, then keep in a task of its own, and release at the end. Every write of the leader asks `fence` first.

    identity: of this process, and of no other that ever was.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        *,
        terms: Terms | None = None,
        identity: str | None = None,
        clock: Callable[[], float] = steady_clock,
    ) -> None:
        self.identity = identity or f"{socket.gethostname()}_{uuid.uuid4()}"
        self._terms = terms or Terms()
        self._kube = replace(kube, fence=self._in_time, timeout=self._terms.renew_deadline / 2)
        self._ref = Ref(LEASE, namespace, name)
        self._clock = clock
        self._held_until = _NEVER
        self._over = False  # lost or released; a lease is not taken twice
        self._seen: tuple[Manifest, float] = {}, 0.0  # another's record, and since when it has not changed
        self._written: Manifest = {}  # the record after this process's last write

    def held(self) -> bool:
        return not self._over and self._clock() < self._held_until

    def fence(self) -> None:
        if not self.held():
            raise Fenced(f"{self._ref} is not held by this process: nothing is written")

    async def acquire(self, refused: Callable[[], None] = lambda: None) -> None:
        """Returns as the leader. refused: called after each attempt that fails."""
        logged = ""
        while not await self._try():
            refused()
            if (holder := self._holder()) and holder != logged:
                log.info("lease_waited_for", lease=str(self._ref.key), holder=holder, identity=self.identity)
                logged = holder
            self._held_until = _NEVER
            await self._pause()
        log.info("lease_acquired", lease=str(self._ref.key), identity=self.identity)

    async def keep(self, lost: Callable[[], None]) -> None:
        """Renews until `release`, and returns then. If the lease is lost it calls `lost`, which ends the process: what
        that still does would be unfenced. To be cancelled without a release counts as a loss.
        """
        try:
            while self.held():
                await asyncio.sleep(min(self._terms.retry, self._left()))
                if self.held():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._left()):
                            await self._try()
        finally:
            if not self._over:
                self._over = True
                log.error("lease_lost", lease=str(self._ref.key), identity=self.identity)
                lost()

    async def release(self) -> None:
        """Lets another take over at its next look. Nothing may be left that writes: from here on the fence refuses."""
        held, self._over = self.held(), True
        try:
            if held:
                await self._give_up()
        except KubeError as error:
            log.warning("lease_not_released", lease=str(self._ref.key), error=str(error))

    def _holder(self) -> str:
        """The process that has the lease instead, as far as known."""
        return str(self._seen[0].get("holderIdentity", ""))

    def _in_time(self) -> None:
        """The fence of its own writes: a leader that thaws must not renew what it has lost."""
        if _NEVER < self._held_until <= self._clock():
            raise Fenced(f"{self._ref} has run out")

    async def _pause(self) -> None:
        await asyncio.sleep(self._terms.retry * random.uniform(1.0, 1.2))  # candidates stay out of step

    def _left(self) -> float:
        return self._held_until - self._clock()

    async def _try(self) -> bool:
        """One look at the record, and one write if it is free or this process's. Whether the lease is held now."""
        began = self._clock()
        try:
            claimed = await self._claim()
        except KubeError as error:
            log.warning("lease_not_written", lease=str(self._ref.key), error=str(error))
        else:
            self._held_until = began + self._terms.renew_deadline if claimed else _NEVER
        return self.held()

    async def _claim(self) -> bool:
        """Whether the record is this process's now. Raises KubeError if that is unknown.

        No other process writes it while it is renewed, so a renewal is one call: under load each takes its time.
        """
        if self._written:
            with suppress(Conflict, NotFound):
                return await self._write(self._written)
        return await self._write(await self._read())

    async def _write(self, record: Manifest) -> bool:
        """record: what is there, empty for nothing. Returns False if another process holds it."""
        spec = record.get("spec", {})
        if self._over or self._is_anothers(spec):
            return False
        if record:
            self._written = await self._kube.patch(self._ref, _version(record), {"spec": self._renewed(spec)})
        else:
            metadata = {"namespace": self._ref.namespace, "name": self._ref.name}
            self._written = await self._kube.create(LEASE.manifest(metadata, spec=self._renewed(spec)))
        return True

    async def _read(self) -> Manifest:
        """Empty if there is none."""
        try:
            return await self._kube.get(self._ref)
        except NotFound:
            return {}

    def _is_anothers(self, spec: Manifest) -> bool:
        if spec.get("holderIdentity") in (None, "", self.identity):
            return False
        seen, since = self._seen
        if spec != seen:
            since = self._clock()
            self._seen = spec, since
        duration: float = spec.get("leaseDurationSeconds", self._terms.duration)
        return self._clock() < since + duration

    def _renewed(self, spec: Manifest) -> Manifest:
        now = _timestamp()
        ours = {"holderIdentity": self.identity, "leaseDurationSeconds": self._terms.duration, "renewTime": now}
        if spec.get("holderIdentity") == self.identity:
            return ours
        return ours | {"acquireTime": now, "leaseTransitions": spec.get("leaseTransitions", -1) + 1}

    async def _give_up(self) -> None:
        record = await self._read()
        if record.get("spec", {}).get("holderIdentity") != self.identity:
            return
        free = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": _timestamp()}
        try:
            await self._kube.patch(self._ref, _version(record), {"spec": free})
        except Conflict:
            await self._give_up()  # a renewal that was under way came first
        else:
            log.info("lease_released", lease=str(self._ref.key), identity=self.identity)


def _version(record: Manifest) -> str:
    version: str = record["metadata"]["resourceVersion"]
    return version


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
