"""One operator process: the real queue, store, reconciler and clients, wired as the entry point wires them."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

import aiohttp
import kopf

from rljob_operator.head.address import HeadAddress
from rljob_operator.head.errors import HeadError
from rljob_operator.head.heads import Heads
from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import KubeError
from rljob_operator.kube.kinds import Key, Kind, Manifest
from rljob_operator.reconcile import Reconciler
from rljob_operator.runtime.lists import list_all
from rljob_operator.runtime.queue import Backoff, WorkQueue
from rljob_operator.runtime.store import Store
from rljob_operator.runtime.watches import register
from rljob_operator.settings import Settings
from tests.rljob_operator.world.clock import now
from tests.rljob_operator.world.images import IMAGE
from tests.rljob_operator.world.wire import Wire
from tests.rljob_operator.world.witness import Witness

SETTINGS = Settings(key=b"k" * 32, trainer_image=IMAGE, poll_seconds=30.0)
BACKOFF = Backoff(first=1.0, cap=30.0)


class Handler(Protocol):
    def __call__(self, *, event: Manifest) -> Coroutine[Any, Any, None]: ...


class Process:
    """wire: all that it says goes over this. errors: those of its runs that are neither KubeErrors nor HeadErrors."""

    def __init__(self, wire: Wire, connection: object, session: object, namespaces: Sequence[str]) -> None:
        self.wire, self.errors = wire, list[BaseException]()
        self._namespaces, self._news = namespaces, set[Key]()
        self._store, self._kube = Store(), Kube(cast(Connection, connection))
        heads = Heads(cast(aiohttp.ClientSession, session), HeadAddress(), SETTINGS)
        self.witness = Witness(self._kube, heads, self._store)
        self.restarted: list[str] = []
        self.queue = WorkQueue(self._work, backoff=BACKOFF, failed=self._failed)
        self._reconciler = Reconciler(
            self._store, heads, self.witness, SETTINGS, self.queue.add_after, self.restarted.append, now
        )
        registry = kopf.OperatorRegistry()
        register(registry, kopf.OperatorSettings(), self._heard)
        self._lists = set[asyncio.Task[None]]()
        self._handlers = {str(each.id): cast(Handler, each.fn) for each in registry._watching.get_all_handlers()}

    async def start(self) -> None:
        self.queue.start()
        await self._list()

    def resync(self) -> None:
        """Lists in the background, as from time to time."""
        begun = asyncio.create_task(self._list())
        self._lists.add(begun)  # the loop alone would let it be collected
        begun.add_done_callback(self._lists.discard)

    async def hear(self, kind: Kind, event: Manifest) -> None:
        """What a watch says."""
        await self._handlers[kind.resource](event=event)

    async def bury(self) -> None:
        """Nothing of it goes on."""
        for each in self._lists:
            each.cancel()
        await self.queue.stop(grace=0)

    async def _list(self) -> None:
        with suppress(KubeError):
            await list_all(self._kube, self._store, self._news, self._namespaces)
            self._changed(self._news)
            self._news.clear()

    def _heard(self, kind: Kind, manifest: Manifest, deleted: bool) -> None:
        self._changed(self._store.remove(kind, manifest) if deleted else self._store.put(kind, manifest))

    def _changed(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.queue.add(key)

    async def _work(self, key: Key) -> None:
        await self._reconciler.reconcile(key)

    def _failed(self, _key: Key, error: BaseException, _seconds: float) -> None:
        if not isinstance(error, KubeError | HeadError):
            self.errors.append(error)
