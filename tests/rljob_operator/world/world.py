"""Everything that the operator sees, in memory, on a clock that jumps: see the package's docstring."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from rljob_operator.kube.kinds import POD
from rljob_operator.observe.snapshot import is_deleting
from tests.rljob_operator.world.api_server import ApiServer, Refusal
from tests.rljob_operator.world.clock import seconds, settle
from tests.rljob_operator.world.connection import Connection, Session
from tests.rljob_operator.world.controllers import Deployments, GarbageCollector, Nodes
from tests.rljob_operator.world.gangs import Gangs
from tests.rljob_operator.world.heads import Heads
from tests.rljob_operator.world.images import Images
from tests.rljob_operator.world.invariants import Invariants
from tests.rljob_operator.world.kuberay import TYPE, KubeRay
from tests.rljob_operator.world.kueue import Kueue
from tests.rljob_operator.world.process import Process
from tests.rljob_operator.world.trouble import Trouble
from tests.rljob_operator.world.user import User
from tests.rljob_operator.world.watching import Streams
from tests.rljob_operator.world.wire import Call, Turn, Wire

RESYNC_SECONDS = 300.0
QUIET_SECONDS = 400.0
"""After so long without a change, only what has a date still further away is to come."""

SLICES = (1.0, 1.0, 18.0)
"""Seconds; the operator's shortest polls take one."""

MOVE_SECONDS = 0.5
"""A pod that replaces another is not of the same second for ever."""

PATIENCE_SECONDS = 900.0
TIRELESS = 500
"""Calls in one moment that are no work any more."""


def undisturbed(_call: Call) -> Turn:
    return Turn()


class World:
    """Nothing in it moves by itself but the operator, unless `live` makes it.

    next_turn: asked how each call of the operator goes. late: writes of dead operators that are still on their way.
    calls: of all operators. writes: those of them that may change something.
    namespaces: those that the operator looks after, empty for all.
    """

    def __init__(self, namespaces: Sequence[str] = ()) -> None:
        self.namespaces = namespaces
        self.server = ApiServer()
        self.heads = Heads(self.server)
        self.images, self.gangs = Images(), Gangs(self.server)
        self.nodes = Nodes(self.server, self.heads.lost, self.images, self.gangs)
        self.kuberay, self.garbage = KubeRay(self.server), GarbageCollector(self.server)
        self.deployments, self.kueue = Deployments(self.server), Kueue(self.server)
        self.trouble = Trouble(self.server, self.heads, self.nodes)
        self.streams, self.user = Streams(self.server), User(self.server)
        self.invariants = Invariants(self.server, self.heads, self.trouble, self.streams, self.gangs)
        self.next_turn: Callable[[Call], Turn] = undisturbed
        self.late: list[Callable[[], object]] = []
        self.calls: list[Call] = []
        self._in_a_row = 0
        self._listed = 0.0

    # ---- the operator

    async def start(self) -> None:
        """A process, the first or after a death. It knows nothing."""
        self.streams.begin()
        turn, self.next_turn = self.next_turn, undisturbed
        wire = Wire(self._turn, self.late)
        connection = Connection(wire, self.server, self.invariants.deleted)
        self.process = Process(wire, connection, Session(wire, self.heads), self.namespaces)
        self.invariants.watch(self.process.witness)
        await self.process.start()
        self.next_turn = turn

    async def restart(self) -> None:
        self.process.wire.dead = True
        await self.process.bury()
        await self.start()

    async def settle(self) -> None:
        """Until the operator waits, for news or for a time. One that dies on the way is followed by another."""
        self._in_a_row = 0
        await settle()
        while self.process.wire.dead:
            await self.restart()
            await settle()
        if self.process.errors:
            raise self.process.errors[0]
        self.invariants.check()

    def _turn(self, call: Call) -> Turn:
        self._in_a_row += 1
        assert self._in_a_row < TIRELESS, "it goes on and on, and no time passes"
        self.calls.append(call)
        return self.next_turn(call)

    # ---- everybody else

    async def deliver(self) -> None:
        """All that the watches have to say."""
        while waiting := self.streams.waiting():
            for kind in waiting:
                while kind in self.streams.waiting():
                    await self.process.hear(kind, self.streams.take(kind))
            await self.settle()

    async def live(self, *, drivers: bool = True, servers: bool = True) -> None:
        """Some time, in which everybody does what they have to do. Drivers begin, and then do a step each.

        servers: whether those of reward models get ready.
        """
        for driver in self.heads.living():
            if drivers or driver.job is None:  # one that never began would be given up
                self.heads.step(driver)
        if seconds() - self._listed >= RESYNC_SECONDS:
            self._listed = seconds()
            self.process.resync()
        for pause in SLICES:
            while self._move(drivers=drivers, servers=servers) or self.streams.waiting():
                await self.deliver()
                await asyncio.sleep(MOVE_SECONDS)
            await asyncio.sleep(pause)
            await self.settle()

    async def until(self, holds: Callable[[], bool], *, drivers: bool = True, servers: bool = True) -> bool:
        """Live until it holds, or for so long that it never will. Whether it does."""
        deadline = seconds() + PATIENCE_SECONDS
        while not holds() and seconds() < deadline:
            await self.live(drivers=drivers, servers=servers)
        return holds()

    async def rest(self, *, drivers: bool = True) -> None:
        """Nothing goes wrong any more. Returns when nothing has changed for a long time."""
        self.next_turn, self._listed = undisturbed, float("-inf")
        self.streams.stalled.clear()
        self.server.closed.clear()
        self.heads.mute = False
        self.images.out.clear()
        self.kueue.open = True
        self.kueue.activate(active=True)
        self.gangs.install()
        self.gangs.let_go()
        self.arrive()
        version, since = self.server.version, seconds()
        while seconds() - since < QUIET_SECONDS:
            await self.live(drivers=drivers)
            if self.server.version != version:
                version, since = self.server.version, seconds()

    def arrive(self) -> None:
        """What was late."""
        self.invariants.belated = True
        while self.late:
            with suppress(Refusal):
                self.late.pop(0)()
        self.invariants.belated = False

    def _move(self, *, drivers: bool, servers: bool) -> bool:
        """Whether anybody had anything to do. Drivers that are asked to stop do not wait."""
        asked = [driver for driver in self.heads.living() if drivers and driver.job and driver.volume.asked]
        stopped = [self.heads.step(driver) for driver in asked]
        moving = [
            pod for pod in self.server.all(POD) if servers or TYPE in pod["metadata"]["labels"] or is_deleting(pod)
        ]
        pods = [self.nodes.step(pod) for pod in moving]
        controllers = (self.kueue, self.gangs, self.kuberay, self.deployments, self.garbage)
        return any([*[each.step() for each in controllers], *pods, *stopped])
