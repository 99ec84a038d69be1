"""What lists tell, while one of them fails again and again."""

import asyncio
from typing import Any, cast

import kopf
import pytest

from rljob_operator.kube.client import Kube, Listing
from rljob_operator.kube.connection import Connection
from rljob_operator.kube.errors import Unavailable
from rljob_operator.kube.kinds import DISRUPTION_BUDGET, RLJOB, Key, Kind
from rljob_operator.main import Operator
from rljob_operator.runtime.watches import register
from tests.rljob_operator.kube_server import KubeObjects, MemoryConnection
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.snapshots import SETTINGS, manifest

JOB = Key("team", "job")


@in_jumping_loop
async def test_a_change_that_a_list_tells_before_the_watch_is_looked_at_though_another_list_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, version, broken, looked = manifest(), 100, False, list[bool]()

    async def listing(_kube: Kube, kind: Kind, *_: Any) -> Listing:
        if broken and kind == DISRUPTION_BUDGET:
            raise Unavailable("etcdserver: request is too large")
        return Listing([job] if kind == RLJOB else [], str(version))

    async def look(_operator: Operator, key: Key) -> None:
        seen = operator.store.get(RLJOB, key)
        assert seen is not None
        looked.append(seen["spec"]["suspend"])

    monkeypatch.setattr(Kube, "list", listing)
    monkeypatch.setattr(Operator, "_work", look)
    operator = Operator(SETTINGS, cast(Connection, MemoryConnection(KubeObjects())), cast(Any, None))
    registry = kopf.OperatorRegistry()
    register(registry, kopf.OperatorSettings(), operator.heard)
    watch = next(each.fn for each in registry._watching.get_all_handlers() if each.id == RLJOB.plural)

    await operator._list()
    await asyncio.sleep(1.0)
    assert looked == [], "before the queue starts, nobody looks"
    operator.queue.start()
    broken, version, job = True, 102, manifest(suspend=True)
    job["metadata"] = job["metadata"] | {"resourceVersion": "101"}
    for _ in range(3):
        with pytest.raises(Unavailable):
            await operator._list()
        await cast(Any, watch)(event={"type": "MODIFIED", "object": job})
        await asyncio.sleep(1.0)
    assert looked == [True]
    await operator.queue.stop(0.0)
