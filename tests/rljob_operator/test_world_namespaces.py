"""A job of an operator that looks after some namespaces, one of which it may not read for a while."""

from logging import DEBUG

import pytest
from structlog.testing import capture_logs

from rljob_operator.kube.kinds import POD, RLJOB, Key
from rljob_operator.runtime.logging import severity
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.api_server import kind_of
from tests.rljob_operator.world.user import KEY
from tests.rljob_operator.world.world import RESYNC_SECONDS, World

NAMESPACES = (KEY.namespace, "another")


async def resynced(world: World) -> None:
    """Lists, and whatever follows from them."""
    for _ in range(int(RESYNC_SECONDS / 20) + 1):
        await world.live(drivers=False)


async def running() -> World:
    world = World(NAMESPACES)
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    return world


def restarts(world: World) -> int:
    assert world.user.job is not None
    return int(world.user.job["status"].get("restarts", 0))


@pytest.mark.parametrize("lists", [1, 3])
@in_jumping_loop
async def test_a_job_that_runs_is_left_as_it_is_where_it_may_not_be_read_and_goes_on_afterwards(lists: int) -> None:
    world = await running()
    world.server.closed.add(KEY.namespace)
    with capture_logs() as logs:
        for _ in range(lists):
            await resynced(world)
    assert [each["namespace"] for each in logs if each["event"] == "namespace_not_readable"] == [KEY.namespace]
    world.server.patch(RLJOB, KEY, {"metadata": {"annotations": {"a": "b"}}})
    await world.deliver()
    asked = len(world.calls)
    await world.live(drivers=False)
    assert not world.calls[asked:], "nobody looks after it"

    world.server.closed.clear()
    await resynced(world)
    assert (stories.phase(world), restarts(world)) == ("Running", 0)
    assert len(world.heads.living()) == 1
    world.user.change(suspend=True)
    assert await world.until(lambda: stories.phase(world) == "Suspended")


@in_jumping_loop
async def test_a_namespace_that_is_being_deleted_is_asked_for_less_and_less_and_warns_of_nothing() -> None:
    """Its RayCluster has gone with it, and the job not yet, as where somebody's finalizer holds it."""
    world = await running()
    errors: list[BaseException] = []
    world.process.queue._failed = lambda _key, error, _seconds: errors.append(error)
    world.server.leaving.add(KEY.namespace)
    with capture_logs() as logs:
        world.trouble.cluster_is_deleted()
        for _ in range(10):
            await world.live(drivers=False)
    assert errors
    assert {severity(error) for error in errors} == {DEBUG}
    assert [each for each in logs if each["log_level"] not in ("debug", "info")] == []
    asked = [call.words for call in world.calls]
    assert asked.count("post RayCluster") < 20
    assert "being terminated" in stories.ready(world)


@in_jumping_loop
async def test_a_job_that_runs_is_found_by_an_operator_that_may_read_it_only_later() -> None:
    world = await running()
    world.server.closed.add(KEY.namespace)
    await world.restart()
    world.server.patch(RLJOB, KEY, {"metadata": {"annotations": {"a": "b"}}})
    await world.deliver()  # it hears of the job, and not of what it has
    world.server.closed.clear()
    await world.live(drivers=False)
    assert (stories.phase(world), restarts(world)) == ("Running", 0)
    await resynced(world)
    assert (stories.phase(world), restarts(world)) == ("Running", 0)
    await stories.succeeds(world)


@in_jumping_loop
async def test_a_namespace_that_is_made_anew_while_it_may_not_be_read_has_nothing_of_the_old_one() -> None:
    world = await running()
    world.server.closed.add(KEY.namespace)
    await resynced(world)
    for pod in world.server.all(POD):
        world.nodes.end(pod)
    for held in list(world.server.objects.values()):
        kind, key = kind_of(held), Key.of(held)
        world.server.patch(kind, key, {"metadata": {"finalizers": None}})
        if (left := world.server.find(kind, key)) is not None:
            world.server.delete(left)
    world.streams.begin()  # no watch tells of it
    world.user.create()
    world.streams.begin()
    world.server.closed.clear()
    await resynced(world)
    await stories.finishes(world)
    assert (stories.phase(world), restarts(world)) == ("Succeeded", 0)
