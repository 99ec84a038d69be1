"""Deleted jobs that somebody else's finalizer keeps, or whose operator was away."""

import asyncio

from rljob_operator import names
from rljob_operator.decide.status import DETAIL_POLLS
from rljob_operator.kube.kinds import POD, RAY_CLUSTER, RLJOB
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.clock import seconds
from tests.rljob_operator.world.process import SETTINGS
from tests.rljob_operator.world.user import KEY, QUEUED
from tests.rljob_operator.world.world import World

ANOTHERS = "x.y/z"


async def kept_by_another() -> World:
    """A job that runs."""
    world = await stories.born(1)
    world.server.patch(RLJOB, KEY, {"metadata": {"finalizers": [names.FINALIZER, ANOTHERS]}})
    await world.deliver()
    return world


def finalizers(world: World) -> list[str]:
    return list((world.user.job or {"metadata": {}})["metadata"].get("finalizers", ()))


@in_jumping_loop
async def test_a_deleted_job_that_anothers_finalizer_keeps_says_so_soon_and_once() -> None:
    world = await kept_by_another()
    world.user.delete()
    assert await world.until(lambda: finalizers(world) == [ANOTHERS])
    since = seconds()
    assert await world.until(lambda: ANOTHERS in stories.ready(world))
    assert seconds() - since < (DETAIL_POLLS + 1) * SETTINGS.poll_seconds
    said = world.server.version
    for _ in range(30):
        await world.live()
    assert world.server.version == said
    world.server.patch(RLJOB, KEY, {"metadata": {"finalizers": []}})
    await world.live()
    assert world.user.job is None


@in_jumping_loop
async def test_what_runs_goes_although_nobody_looked_before_the_time_to_do_so_was_over() -> None:
    world = await kept_by_another()
    await world.process.bury()
    world.user.delete()
    await asyncio.sleep(SETTINGS.deletion_seconds)
    await world.start()
    assert await world.until(lambda: ANOTHERS in stories.ready(world))
    assert await world.until(lambda: not world.server.all(POD))
    assert world.server.find(RAY_CLUSTER, KEY) is None


async def queued() -> World:
    """A job with quota, whose pods take longer to end than the operator waits for them."""
    world = await stories.born(1, **QUEUED)
    world.nodes.patient = True
    return world


async def check_quota(world: World) -> None:
    """Held while there are pods, then free."""
    assert await world.until(lambda: world.user.job is None)
    for _ in range(3):
        await world.live()
    assert world.server.all(POD)
    assert world.kueue.holds(), "a pod without quota"
    world.nodes.patient = False
    assert await world.until(lambda: not world.kueue.workloads), "quota without pods"


@in_jumping_loop
async def test_a_deleted_job_that_goes_before_its_pods_leaves_them_their_quota() -> None:
    world = await queued()
    world.user.delete()
    await check_quota(world)


@in_jumping_loop
async def test_the_quota_of_a_job_whose_finalizer_a_person_removes_is_free_after_its_last_pod() -> None:
    world = await queued()
    world.user.delete_by_force()
    await check_quota(world)


@in_jumping_loop
async def test_quota_that_a_job_left_while_no_operator_ran_is_freed() -> None:
    world = await queued()
    await world.process.bury()
    world.user.delete_by_force()
    await world.start()
    await check_quota(world)
