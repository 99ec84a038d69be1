"""The operator's start, and what it does with lists and watches: kopf begins late, and KubeRay may come later still."""

import asyncio
import logging
import re
from itertools import islice
from typing import Any, cast

import kopf
import pytest

from rljob_operator import main
from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Answer, Connection
from rljob_operator.kube.errors import NotFound, Throttled, Unavailable
from rljob_operator.kube.kinds import DISRUPTION_BUDGET, LEASE, POD, RLJOB, WORKLOAD, Key, Kind, Manifest
from rljob_operator.names import MANAGER_NAME
from rljob_operator.runtime.lists import list_all
from rljob_operator.runtime.missing import Missing
from rljob_operator.runtime.store import Store
from rljob_operator.runtime.watches import quieten, register
from rljob_operator.settings import Settings
from tests.rljob_operator.kube_server import (
    KubeObjects,
    KubeServer,
    MemoryConnection,
    Request,
    not_found,
    response,
)
from tests.rljob_operator.loops import in_jumping_loop, in_loop
from tests.rljob_operator.snapshots import manifest

JOBS, WORKERS = 40, 32
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/rljob-system/leases/rljob-operator"


class Looks(main.Operator):
    """An operator whose looks take so long, and do nothing. seen: spec.suspend of the jobs that they looked at."""

    def __init__(self, connection: MemoryConnection, seconds: float = 0.0) -> None:
        super().__init__(Settings(workers=WORKERS), cast(Connection, connection), cast(Any, None))
        self.seconds, self.seen = seconds, list[bool]()

    async def _work(self, key: Key) -> None:
        job = self.store.get(RLJOB, key)
        assert job is not None
        self.seen.append(job["spec"]["suspend"])
        await asyncio.sleep(self.seconds)


def put_job(objects: KubeObjects, name: str = "job", **spec: Any) -> Manifest:
    job = manifest(**spec)
    job["metadata"] |= {"name": name}
    return objects.put(f"/apis/rljob.dev/v1alpha1/rljobs/{name}", job)


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


REFUSED = "Request attempt #9 failed: GET {} -> APIForbiddenError"
LOGGED = [
    ("kopf.watching", POD, "gone", False), ("kopf.watching", POD, "there", True), ("other", POD, "gone", True),
    ("kopf.watching", WORKLOAD, "there", False), ("kopf.watching", WORKLOAD, "another", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "namespace", "logged"), LOGGED)
def test_what_the_lists_log_once_kopf_does_not_log_at_every_try(
    name: str,
    kind: Kind,
    namespace: str,
    logged: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    monkeypatch.setattr(caplog.handler, "filters", [])
    store = Store()
    store.unreadable.add("gone")
    store.missing = Missing({"there": frozenset({WORKLOAD})})
    quieten(store)
    logging.getLogger(name).error(REFUSED.format(kind.path(namespace)))
    assert bool(caplog.records) == logged


@pytest.mark.parametrize(
    ("seconds", "holder", "least", "most"),
    [
        (10.0, "", 10.0, 15.0),  # JOBS - WORKERS of them wait until others are done
        (1000.0, "", main.FIRST_LOOK_SECONDS, main.FIRST_LOOK_SECONDS + 5.0),
        (1000.0, "another process", 0.0, 5.0),
    ],
)
@in_jumping_loop
async def test_kopf_begins_after_the_first_looks_unless_they_hang_or_another_process_leads(
    seconds: float, holder: str, least: float, most: float
) -> None:
    objects, loop = KubeObjects(), asyncio.get_running_loop()
    for number in range(JOBS):
        put_job(objects, f"job-{number}")
    if holder:
        metadata = {"name": "rljob-operator", "namespace": "rljob-system"}
        objects.put(LEASE_PATH, LEASE.manifest(metadata, spec={"holderIdentity": holder, "leaseDurationSeconds": 1000}))
    operator = Looks(MemoryConnection(objects), seconds)
    leading = asyncio.create_task(operator.lead())
    await operator.watchable.wait()
    assert least <= loop.time() < most
    await operator.queue.stop(0.0)
    await operator.lease.release()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


class NoBudgets(MemoryConnection):
    broken = False

    async def _answered(self, request: Request) -> Answer:
        if self.broken and request.path.endswith(DISRUPTION_BUDGET.plural):
            raise Unavailable("etcdserver: request is too large")
        return await super()._answered(request)


@in_jumping_loop
async def test_a_change_that_a_list_tells_before_the_watch_is_looked_at_once_though_another_list_fails() -> None:
    objects = KubeObjects()
    connection = NoBudgets(objects)
    operator = Looks(connection)
    put_job(objects)
    await operator._list()
    await asyncio.sleep(1.0)
    assert operator.seen == [], "before the queue starts, nothing is looked at"
    assert "rljob_operator_queue_depth 0.0" in operator.metrics.exposition().decode()
    operator.queue.start()
    connection.broken, job = True, put_job(objects, suspend=True)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await operator._list()
        operator.heard(RLJOB, job, deleted=False)
        await asyncio.sleep(1.0)
    assert operator.seen == [True]
    await operator.queue.stop(0.0)


@in_jumping_loop
async def test_jobs_of_other_operators_are_not_counted() -> None:
    operator = Looks(MemoryConnection(KubeObjects()))
    running, other = {"phase": "Running"}, "example.com/other"
    ours, theirs = running | {"operator": "rljob-system"}, running | {"operator": "another-release"}
    for name, manager, said in (
        ("a", None, {}), ("b", MANAGER_NAME, ours), ("c", other, {}), ("d", other, running), ("e", None, theirs),
    ):  # fmt: skip
        job = manifest(said, **({"managedBy": manager} if manager else {}))
        job["metadata"] |= {"name": name}
        operator.store.put(RLJOB, job)
    told = operator.metrics.exposition().decode()
    counted = dict(re.findall(r'^rljob_operator_jobs\{phase="(\w+)"\} ([1-9])', told, re.MULTILINE))
    assert counted == {"Pending": "1", "Running": "1"}
