"""Who may carry out a plan, and what is told of it."""

from dataclasses import replace
from typing import Any, cast

import pytest

from rljob_operator import names
from rljob_operator.head.heads import Heads
from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Answer, Connection
from rljob_operator.kube.errors import Conflict, Fenced
from rljob_operator.kube.kinds import POD, Key
from rljob_operator.perform.performer import Performer
from rljob_operator.plan import Plan, Submission
from rljob_operator.runtime.store import Store
from tests.rljob_operator import gangs, queues
from tests.rljob_operator.decisions import decide
from tests.rljob_operator.kube_server import KubeObjects, MemoryConnection, Request
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.snapshots import REWARDS, SETTINGS, UID, job, pod, snapshot

_OF_A_GANG = ("podgroups", "rayclusters", "deployments")


class Told:
    """Heads that note what they are told."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __getattr__(self, name: str) -> Any:
        async def note(*_: object) -> None:
            self.words.append(name)

        return note


def refuses() -> None:
    raise Fenced("the lease is another's")


def performer(told: Told, **fence: Any) -> Performer:
    return Performer(Kube(cast(Connection, MemoryConnection(KubeObjects())), **fence), cast(Heads, told), Store())


class Warns(MemoryConnection):
    """It does not know the workers' tolerationz."""

    async def _answered(self, request: Request) -> Answer:
        answer = await super()._answered(request)
        words = 'unknown field "spec.workerGroupSpecs[0].template.spec.tolerationz"'
        return replace(answer, warnings=(words,) if request.path.endswith("rayclusters") else ())


@in_jumping_loop
async def test_a_field_that_the_ray_cluster_was_made_without_is_told() -> None:
    objects = KubeObjects()
    performs = Performer(Kube(cast(Connection, Warns(objects))), cast(Heads, Told()), Store())
    seen = snapshot(job(cluster={"worker": {"template": {"spec": {"tolerationz": [{"key": "x"}]}}}}))
    plan = decide(seen, SETTINGS)
    assert {each["kind"] for each in plan.create} == {"Secret", "RayCluster"}
    await performs.perform(seen, plan)
    (event,) = [each for path, each in objects.objects.items() if "/events/" in path]
    assert (event["reason"], event["type"], event["regarding"]["uid"]) == ("FieldIgnored", "Warning", UID)
    assert "unknown field" in event["note"]
    assert "spec.cluster.worker.template" in event["note"]


@in_jumping_loop
async def test_a_pod_group_is_there_before_anything_that_has_pods() -> None:
    objects = KubeObjects()
    performs = Performer(Kube(cast(Connection, MemoryConnection(objects))), cast(Heads, Told()), Store())
    seen = snapshot(gangs.gang("volcano", rewards=REWARDS))
    await performs.perform(seen, decide(seen))
    written = [next((each for each in _OF_A_GANG if each in request.path), "") for request in objects.writes]
    first, *later = [each for each in written if each]
    assert (first, {*later}) == ("podgroups", {"rayclusters", "deployments"})


START = Plan(submit=Submission("job-a1", 1))


@pytest.mark.parametrize(("plan", "word"), [(START, "submit"), (Plan(stop=True), "stop"), (Plan(end="a"), "end")])
@in_jumping_loop
async def test_a_head_is_told_by_the_leader_alone(plan: Plan, word: str) -> None:
    told = Told()
    await performer(told).perform(snapshot(), plan)
    assert told.words == [word]
    with pytest.raises(Fenced):
        await performer(told, fence=refuses).perform(snapshot(), plan)
    assert told.words == [word]


@in_jumping_loop
async def test_no_quota_is_freed_while_the_api_server_has_a_pod_that_no_watch_has_reported() -> None:
    objects, told = KubeObjects(), Told()
    store = Store()
    performs = Performer(Kube(cast(Connection, MemoryConnection(objects))), cast(Heads, told), store)
    seen = queues.seen(queues.evicted())
    plan = decide(seen)
    assert [patch.frees for patch in plan.patch] == [True]
    late = pod("late", names.WORKER)
    late["metadata"]["labels"][names.JOB_LABEL] = "job"
    objects.objects["/api/v1/namespaces/team/pods/late"] = late
    with pytest.raises(Conflict):
        await performs.perform(seen, plan)
    assert store.children(POD, Key("team", "job")) == [late]
