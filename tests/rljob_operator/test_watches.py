"""kopf itself before a played API server, which answers it wrongly, once: it goes on, or the process ends."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from rljob_operator import main
from rljob_operator.kube.kinds import OPTIONAL, RAY_CLUSTER, RLJOB, WATCHED, WORKLOAD_PRIORITY_CLASS, Key, Kind
from rljob_operator.names import QUEUE_LABEL
from rljob_operator.runtime.missing import Missing
from rljob_operator.runtime.store import Store
from rljob_operator.settings import Settings
from tests.rljob_operator.kube_server import KubeServer, Result, not_found, response, status
from tests.rljob_operator.loops import in_loop
from tests.rljob_operator.snapshots import manifest

ANSWERS: dict[str, Result] = {"404": status(404, "its CRD is replaced"), "410": status(410, "too old")}

TEXTS = {
    "ERROR 500": json.dumps({"type": "ERROR", "object": status(500, "etcd is ill")[1]}) + "\n",
    "half a line": '{"type": "MODIFIED", "object": {"meta',
}
"""With status 200."""


@dataclass
class PlayedServer(KubeServer):
    """There is a job. fault: what of RayClusters is answered wrongly, and how; None once it was. missing: kinds that it
    does not know, by their names in paths.
    """

    fault: tuple[str, str] | None = None
    missing: set[str] = field(default_factory=set)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)  # verbs and kinds
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def _handle(self, request: web.Request) -> Any:
        plural, verb = request.path.rpartition("/")[2], "watch" if "watch" in request.query else "list"
        if plural not in (kind.plural for kind in WATCHED):
            return response(_kinds(request.path))
        self.asked[verb, plural] += 1
        if plural in self.missing:
            return response(not_found(request.path))
        if self.fault is not None and (verb, plural) == (self.fault[0], RAY_CLUSTER.plural):
            (_, how), self.fault = self.fault, None
            return response(ANSWERS[how]) if how in ANSWERS else web.Response(text=TEXTS[how])
        if verb == "list":
            items = [manifest()] if plural == RLJOB.plural else []
            return response((200, {"metadata": {"resourceVersion": "100"}, "items": items}))
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "100"}}}\n')
        await self.over.wait()
        return stream


def _kinds(path: str) -> Result:
    """What kopf asks to learn which kinds there are. It begins only where there are namespaces."""
    groups = defaultdict[str, list[dict[str, Any]]](list)
    for kind in (*WATCHED, Kind("v1", "Namespace", "namespaces")):
        there = {"name": kind.plural, "kind": kind.name, "singularName": "", "verbs": ["list", "watch"]}
        groups[kind.api_version].append(there | {"namespaced": True})
    if path == "/api":
        return 200, {"versions": ["v1"]}
    if path == "/apis":
        named = [each.split("/") for each in groups if "/" in each]
        return 200, {"groups": [
            {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}
            for group, version in named
        ]}  # fmt: skip
    version = path.removeprefix("/apis/").removeprefix("/api/")
    return (200, {"resources": groups[version]}) if version in groups else not_found(path)


@asynccontextmanager
async def kopf_before(server: PlayedServer) -> AsyncIterator[main.Operator]:
    """The operator that it tells of what it sees."""
    async with server, server.connect() as connection:
        operator = main.Operator(Settings(), connection, cast(Any, None))
        watching = asyncio.create_task(operator.watch())
        await asyncio.sleep(0.05)
        assert not server.asked, "it looks once which kinds there are, so everything is listed before"
        operator.store.missing = Missing({None: frozenset(each for each in OPTIONAL if each.plural in server.missing)})
        operator.watchable.set()
        yield operator
        server.over.set()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(15.0):
        while not what():  # noqa: ASYNC110 - the server is told of nothing else
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("verb", "how"), [("list", "404"), *(("watch", each) for each in (*ANSWERS, *TEXTS))])
@in_loop
async def test_all_kinds_are_listed_and_watched_again_whatever_is_answered_once(
    verb: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "AGAIN_SECONDS", (0.1,))
    server = PlayedServer(fault=(verb, how))
    with capture_logs() as logs:
        async with kopf_before(server) as operator:
            await is_heard(server, operator.store, verb)
    assert "watches_ended" in {each["event"] for each in logs}


async def is_heard(server: PlayedServer, store: Store, verb: str) -> None:
    await until(lambda: server.fault is None and server.asked["watch", RAY_CLUSTER.plural] > (verb == "watch"))
    await until(lambda: {kind.plural for kind in WATCHED} == {plural for _, plural in server.asked})
    await until(lambda: store.get(RLJOB, Key("team", "job")))
    assert server.asked["list", RAY_CLUSTER.plural] >= 2, "what happened meanwhile is listed"


@in_loop
async def test_optional_kinds_are_watched_once_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_RESYNC_SECONDS", "RESYNC_SECONDS"):
        monkeypatch.setattr(main, name, 0.1)
    server = PlayedServer(missing={kind.plural for kind in OPTIONAL})
    async with kopf_before(server) as operator:
        resync = asyncio.create_task(operator.resync())
        await until(lambda: operator.store.missing.everywhere == {*OPTIONAL})
        others = [kind.plural for kind in WATCHED if kind not in OPTIONAL]
        await until(lambda: all(server.asked["watch", each] for each in others))
        before = server.asked["watch", RLJOB.plural]
        server.missing.clear()
        await until(lambda: all(server.asked["watch", kind.plural] for kind in OPTIONAL))
        await until(lambda: server.asked["watch", RLJOB.plural] > before)
        assert not operator.store.missing.everywhere
        resync.cancel()


@in_loop
async def test_a_kind_that_a_new_job_needs_is_found_before_the_next_regular_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "FIRST_RESYNC_SECONDS", 0.1)
    server = PlayedServer(missing={kind.plural for kind in OPTIONAL})
    async with kopf_before(server) as operator:
        resync = asyncio.create_task(operator.resync())
        await until(lambda: server.asked["list", WORKLOAD_PRIORITY_CLASS.plural])  # the last one of the first lists
        await asyncio.sleep(0.2)
        server.missing.clear()
        job = manifest()
        labels = {"labels": {QUEUE_LABEL: "training"}, "resourceVersion": "101"}
        operator.heard(RLJOB, job | {"metadata": job["metadata"] | labels}, False)
        await until(lambda: all(server.asked["watch", kind.plural] for kind in OPTIONAL))
        resync.cancel()
