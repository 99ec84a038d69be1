"""Where a world has to end once nothing goes wrong any more."""

from rljob_api.conditions import Reason
from rljob_operator.kube.kinds import DEPLOYMENT, POD, RAY_CLUSTER, RESOURCE_FLAVOR, SERVICE, VOLUME_CLAIM, Manifest
from tests.rljob_operator.world.invariants import reason
from tests.rljob_operator.world.kueue import holds_quota
from tests.rljob_operator.world.user import KEY
from tests.rljob_operator.world.witness import TERMINAL
from tests.rljob_operator.world.world import World


async def check_end(world: World) -> None:
    """First drivers do nothing, then they work: a job runs, then it has succeeded, if nothing spoke against it.

    One with an image that is not there waits for its user first.
    """
    await world.rest(drivers=False)
    if is_wanted(world.user.job) and world.user.is_misnamed:
        check_stalled(world)
        await check_silence(world)
        world.user.mends_images()
        await world.rest(drivers=False)
        check_wanted(world, running=True)
        world.user.change(suspend=False)
        await world.rest(drivers=False)
    check_wanted(world, running=True)
    await check_silence(world)
    await world.rest()
    check_wanted(world, running=False)
    await check_silence(world)


def is_wanted(job: Manifest | None) -> bool:
    """Whether it is to run, and can be read."""
    if job is None or "deletionTimestamp" in job["metadata"] or "fieldOfTomorrow" in job["spec"]["training"]:
        return False
    return job["status"].get("phase") not in TERMINAL and not job["spec"]["suspend"]


def check_stalled(world: World) -> None:
    """For its image, which would have ended it before its first attempt."""
    assert world.user.job is not None
    status = world.user.job["status"]
    assert status.get("attempt"), "nobody has tried anything, and it has not failed"
    assert (status["phase"], reason(status)) in [
        (phase, Reason.IMAGE_NOT_USABLE) for phase in ("Starting", "Recovering")
    ]
    assert ("Stalled", "True") in [(each["type"], each["status"]) for each in status["conditions"]]
    assert not world.heads.living(), "a driver lives without its pods"


def check_wanted(world: World, *, running: bool) -> None:
    job = world.user.job
    if job is None or "deletionTimestamp" in job["metadata"]:
        assert job is None, "a deleted job stays"
        left = {kind.name for kind, _ in world.server.objects} - {VOLUME_CLAIM.name, RESOURCE_FLAVOR.name, "Event"}
        assert not left, f"a job is gone, and these are not: {left}"
        return
    assert bool(world.server.all(POD)) >= any(map(holds_quota, world.kueue.workloads)), "quota is held without pods"
    phase = job["status"].get("phase")
    if "fieldOfTomorrow" in job["spec"]["training"]:
        return  # what runs is left alone
    if phase in TERMINAL:
        check_nothing_runs(world)
    elif job["spec"]["suspend"]:
        assert phase == "Suspended"
        check_nothing_runs(world)
    else:
        assert phase == ("Running" if running else "Succeeded"), phase
        models = len(job["spec"]["rewards"].get("models", ())) if running else 0
        assert len(world.server.all(DEPLOYMENT)) == len(world.server.all(SERVICE)) == models
        ganged = running and job["spec"]["gang"]["scheduler"] != "none"
        assert len(world.gangs.pod_groups) == ganged, "as many PodGroups as gangs"


def check_nothing_runs(world: World) -> None:
    assert not world.heads.living(), "a driver lives on"
    assert not world.server.all(RAY_CLUSTER), "its cluster stays"
    assert not world.server.all(DEPLOYMENT), "its reward models stay"
    assert not world.server.all(POD), "its pods stay"
    assert not world.gangs.pod_groups, "its PodGroup stays"


async def check_silence(world: World) -> None:
    """Nothing has changed, so nobody writes: not when asked to look again, not after a list, not after a restart."""
    written = len([call for call in world.calls if call.writes])
    for _ in range(2):
        world.process.queue.add(KEY)
        await world.settle()
        world.process.resync()
        await world.settle()
        await world.restart()
        await world.settle()
    new = [call.words for call in world.calls if call.writes][written:]
    assert not new, f"nothing has changed, and it writes {new}"
