"""The operator's start, where KubeRay is installed after it."""

import asyncio
import logging
import re
from itertools import islice
from typing import Any, cast

import kopf
import pytest

from rljob_operator import main
from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import NotFound, Throttled
from rljob_operator.kube.kinds import RLJOB, Key
from rljob_operator.names import MANAGER_NAME
from rljob_operator.runtime.lease import LeaderLease
from rljob_operator.runtime.lists import list_all
from rljob_operator.runtime.store import Store
from rljob_operator.runtime.watches import quieten, register
from rljob_operator.settings import Settings
from tests.rljob_operator.kube_server import KubeObjects, KubeServer, MemoryConnection, not_found, response
from tests.rljob_operator.loops import in_jumping_loop, in_loop
from tests.rljob_operator.snapshots import manifest


@in_loop
async def test_a_kind_that_is_not_there_yet_is_named() -> None:
    async with KubeServer() as server, server.connect() as connection:
        none = {"metadata": {"resourceVersion": "7"}, "items": []}
        server.answers += [response((200, none)), response(not_found("/apis/ray.io/v1/rayclusters"))]
        with pytest.raises(NotFound, match=r"no rayclusters of ray\.io/v1 yet; install their CRD"):
            await list_all(Kube(connection), Store(), set())


@pytest.mark.parametrize(("asked", "waits"), [(30.0, 30.0), (0.5, main.RETRY_SECONDS), (None, main.RETRY_SECONDS)])
@in_jumping_loop
async def test_a_start_is_tried_again_no_sooner_than_the_api_server_asks_for(asked: float | None, waits: float) -> None:
    tried = list[float]()

    async def work() -> None:
        tried.append(asyncio.get_running_loop().time())
        if len(tried) < 3:
            raise Throttled("slow down", status=429, retry_after=asked)

    await main._patiently(work)
    assert tried == [0.0, waits, 2 * waits]


def test_kopf_never_gives_up_a_request() -> None:
    settings = kopf.OperatorSettings()
    register(kopf.OperatorRegistry(), settings, lambda *_: None)
    pauses = list(islice(iter(settings.networking.error_backoffs), 100))  # type: ignore[arg-type]
    assert (len(pauses), max(pauses)) == (100, 60.0)


@pytest.mark.parametrize(
    ("name", "words", "logged"),
    [
        ("kopf.watching", "Request attempt #9 failed: GET /api/v1/namespaces/gone/pods -> APIForbiddenError", False),
        ("kopf.watching", "Request attempt #9 failed: GET /api/v1/namespaces/there/pods -> APIForbiddenError", True),
        ("other", "GET /api/v1/namespaces/gone/pods", True),
    ],
)
def test_what_the_lists_log_once_kopf_does_not_log_at_every_try(
    name: str, words: str, logged: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And what is so for a moment, as too many requests while a CRD is updated."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    monkeypatch.setattr(caplog.handler, "filters", [])
    store = Store()
    store.unreadable.add("gone")
    quieten(store)
    logging.getLogger(name).error(words)
    assert bool(caplog.records) == logged


JOBS, WORKERS = 40, 32


async def kopf_may_begin_after(work_seconds: float, holder: str = "") -> float:
    """holder: who has the lease."""
    objects, loop = KubeObjects(), asyncio.get_running_loop()

    async def list_jobs(operator: main.Operator) -> None:
        for number in range(JOBS):
            job = manifest()
            job["metadata"] = job["metadata"] | {"name": f"job-{number}"}
            operator.store.put(RLJOB, job)

    if holder:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 1000}
        objects.put("/apis/coordination.k8s.io/v1/namespaces/rljob-system/leases/rljob-operator", {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
            "metadata": {"name": "rljob-operator", "namespace": "rljob-system"},
        })  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main.Operator, "_list", list_jobs)
        patch.setattr(main.Operator, "_work", lambda *_: asyncio.sleep(work_seconds))
        patch.setattr(LeaderLease, "keep", lambda *_, **__: asyncio.sleep(0))
        options = Settings(workers=WORKERS)
        operator = main.Operator(options, cast(Connection, MemoryConnection(objects)), cast(Any, None))
        begin, leading = loop.time(), asyncio.create_task(operator.lead())
        waiting = asyncio.create_task(operator.watchable.wait())
        await asyncio.wait([leading, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert operator.watchable.is_set(), leading
        seconds = loop.time() - begin
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await operator.queue.stop(0.0)
    return seconds


@in_jumping_loop
async def test_kopf_may_begin_when_every_job_has_been_looked_at() -> None:
    """JOBS - WORKERS of them wait until others are done."""
    assert 10.0 <= await kopf_may_begin_after(work_seconds=10.0) < 15.0


@in_jumping_loop
async def test_kopf_does_not_wait_for_looks_that_hang() -> None:
    assert main.FIRST_LOOK_SECONDS <= await kopf_may_begin_after(work_seconds=1000.0) < main.FIRST_LOOK_SECONDS + 5.0


@in_jumping_loop
async def test_kopf_may_begin_at_once_where_another_process_leads() -> None:
    assert await kopf_may_begin_after(work_seconds=1000.0, holder="another") < 5.0


@in_jumping_loop
async def test_who_does_not_lead_has_no_jobs_that_wait() -> None:
    """Its watches tell of each change; the next leader looks at every job anyway."""
    options = Settings()
    operator = main.Operator(options, cast(Connection, MemoryConnection(KubeObjects())), cast(Any, None))
    operator.changed({Key("here", f"job-{number}") for number in range(JOBS)})
    assert "rljob_operator_queue_depth 0.0" in operator.metrics.exposition().decode()


@in_jumping_loop
async def test_jobs_of_other_operators_are_not_counted() -> None:
    options = Settings()
    operator = main.Operator(options, cast(Connection, MemoryConnection(KubeObjects())), cast(Any, None))
    running, other = {"phase": "Running"}, "example.com/other"
    ours, theirs = running | {"operator": "rljob-system"}, running | {"operator": "another-release"}
    for name, manager, said in (
        ("a", None, {}), ("b", MANAGER_NAME, ours), ("c", other, {}), ("d", other, running), ("e", None, theirs),
    ):  # fmt: skip
        job = manifest(said, **({"managedBy": manager} if manager else {}))
        job["metadata"] = job["metadata"] | {"name": name}
        operator.store.put(RLJOB, job)
    told = operator.metrics.exposition().decode()
    counted = dict(re.findall(r'^rljob_operator_jobs\{phase="(\w+)"\} ([1-9])', told, re.MULTILINE))
    assert counted == {"Pending": "1", "Running": "1"}
