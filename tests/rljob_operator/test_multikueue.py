"""Jobs that Kueue sends to another cluster: in the cluster that sends them, and as the copy in the other one."""

from typing import Any

from rljob_operator import names
from rljob_operator.kube.kinds import RAY_CLUSTER, RLJOB, WORKLOAD, Key, Manifest
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.user import KEY, QUEUED
from tests.rljob_operator.world.world import World

PREBUILT = "rljob-job-12345"


async def sent(**changes: Any) -> World:
    """A job of the cluster that sends it away, admitted."""
    world = World()
    world.user.create(**QUEUED, managedBy=names.MULTIKUEUE, **changes)
    await world.start()
    await world.until(world.kueue.holds)
    return world


def copied(world: World, **status: Any) -> None:
    """What Kueue copies from the other cluster."""
    world.server.patch(RLJOB, KEY, {"status": status}, "status")


@in_jumping_loop
async def test_a_job_that_is_sent_away_has_a_workload_and_nothing_else():
    world = await sent()
    copied(world, phase="Running", operator="elsewhere")
    for _ in range(3):
        await world.live()
    assert {kind.name for kind, _ in world.server.objects} <= {"RLJob", "Workload", "ResourceFlavor", "Event"}
    assert stories.phase(world) == "Running", "the status is the copy's"

    world.kueue.evict()
    await world.live()
    assert world.kueue.holds(), "the copy has not stopped"
    world.kueue.open = False
    copied(world, phase="Queued")
    assert await world.until(lambda: not world.kueue.holds())

    world.user.delete()
    assert await world.until(lambda: world.user.job is None)
    await world.live()
    assert not world.kueue.workloads


@in_jumping_loop
async def test_a_finished_workload_is_let_go_and_a_suspended_job_has_none():
    world = await sent()
    world.kueue.finish()
    assert await world.until(lambda: not world.kueue.workloads[0]["metadata"].get("finalizers"))
    world = await sent()
    copied(world, phase="Running")
    world.user.change(suspend=True)
    assert await world.until(lambda: stories.phase(world) == "Suspended" and not world.kueue.workloads)
    world.user.change(suspend=False)
    assert await world.until(world.kueue.holds)


@in_jumping_loop
async def test_a_copy_takes_the_workload_that_kueue_has_made_for_it_and_leaves_its_spec_alone():
    original = (await sent()).kueue.workloads[0]
    world = World()
    world.user.create(labels={names.QUEUE_LABEL: "lab", names.PREBUILT_WORKLOAD: PREBUILT})
    await world.start()
    await world.live()
    assert not world.server.all(WORKLOAD), "Kueue alone creates it"
    spec, copy = original["spec"], of_kueue(original)
    world.server.create(copy)
    assert await world.until(lambda: bool(world.server.all(RAY_CLUSTER)))
    found = world.server.get(WORKLOAD, Key(KEY.namespace, PREBUILT))
    assert world.user.job is not None
    assert [each["uid"] for each in found["metadata"]["ownerReferences"]] == [world.user.job["metadata"]["uid"]]
    await stories.succeeds(world)
    assert found["spec"] == spec
    assert await world.until(lambda: not world.kueue.workloads[0]["metadata"].get("finalizers"))


def of_kueue(original: Manifest) -> Manifest:
    """With the labels and annotations of the original, and no owner."""
    metadata = {name: original["metadata"][name] for name in ("namespace", "labels", "annotations")}
    return WORKLOAD.manifest(metadata | {"name": PREBUILT}, spec=original["spec"])
