"""Lives of jobs, each until nothing is left to happen; a disturbed one continues."""

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, get_args

from rljob_api.v1alpha1.status import Phase
from rljob_operator import names
from rljob_operator.kube.kinds import RAY_CLUSTER
from tests.rljob_operator.world.images import BACKS_OFF, DENIED, NOWHERE, SILENT
from tests.rljob_operator.world.kuberay import holds
from tests.rljob_operator.world.user import KEY
from tests.rljob_operator.world.world import World

Story = Callable[[World], Awaitable[None]]


async def born(number: int = 0, **spec: Any) -> World:
    """A world with a job, and with that attempt of it, if it is one."""
    world = World()
    world.user.create(**spec)
    await world.start()
    if number:
        await attempt(world, number)
    return world


async def succeeds(world: World) -> None:
    await finishes(world)
    assert phase(world) == "Succeeded"


def ended(world: World) -> tuple[str, int, int]:
    """Phase, attempts, restarts."""
    status = (world.user.job or {})["status"]
    return status["phase"], status["attempt"], status.get("restarts", 0)


def phase(world: World) -> str:
    return str(((world.user.job or {}).get("status") or {}).get("phase"))


def ready(world: World) -> str:
    """What the condition Ready says."""
    found = ((world.user.job or {}).get("status") or {}).get("conditions", ())
    return next((str(each["message"]) for each in found if each["type"] == "Ready"), "")


def begun(world: World, attempt: int) -> bool:
    """Whether a driver of that attempt, or of a later one, works, and the status says so."""
    working = [driver for driver in world.heads.living() if driver.job is not None and driver.attempt >= attempt]
    return bool(working) and phase(world) == "Running"


def is_provisioned(world: World) -> bool:
    """Whether all pods of the RayCluster have been ready."""
    cluster = world.server.find(RAY_CLUSTER, KEY)
    return cluster is not None and holds(cluster, "RayClusterProvisioned")


async def attempt(world: World, number: int) -> None:
    await world.until(lambda: begun(world, number))


async def finishes(world: World) -> None:
    await world.until(lambda: phase(world) == "Succeeded")


Act = Callable[[World], object]
Told = int | str | Act
"""An attempt that begins, a phase or words that are reached, or what happens."""


def _story(*told: Told) -> Story:
    async def story(world: World) -> None:
        for each in told:
            if isinstance(each, int):
                await attempt(world, each)
            elif isinstance(each, str):
                await world.until(partial(_is, world, each))
            elif isawaitable(done := each(world)):
                await done

    return story


def _is(world: World, wanted: str) -> bool:
    """A phase, GONE for a job that is deleted, or words that Ready says."""
    if wanted == GONE:
        return world.user.job is None
    return wanted == phase(world) if wanted in get_args(Phase) else wanted in ready(world)


GONE = "gone"


def fails(code: int = 75) -> Act:
    return lambda world: world.trouble.driver_ends(code)


def loses(kind: str, how: str) -> Act:
    return lambda world: world.trouble.pod_is_lost(kind, how)


def server(how: str) -> Act:
    return lambda world: world.trouble.server_is_lost(how)


def change(**spec: Any) -> Act:
    return lambda world: world.user.change(**spec)


def no_image(words: str, *roles: str) -> Act:
    return lambda world: world.images.out.update(dict.fromkeys(roles, words))


def until(holds: Callable[[World], bool], **who: bool) -> Act:
    return lambda world: world.until(lambda: holds(world), **who)


def stopped(world: World) -> bool:
    """Whether nothing of the job runs, which happens to jobs with a queue only."""
    return not world.kueue.workloads or not world.server.all(RAY_CLUSTER)


def suspending(world: World) -> bool:
    return phase(world) == "Suspending"


def deleted(propagation: str) -> Act:
    return lambda world: world.user.delete(propagation)


SUSPEND, RESUME = change(suspend=True), change(suspend=False)
PULLABLE: Act = lambda world: world.images.out.clear()  # noqa: E731
SLOW: Act = lambda world: world.trouble.fabric_is_slow()  # noqa: E731
RESTARTS: Act = lambda world: world.trouble.head_restarts()  # noqa: E731

EVICT: Act = lambda world: world.kueue.evict()  # noqa: E731
ADMIT: Act = lambda world: setattr(world.kueue, "open", True)  # noqa: E731
STOP_ADMITTING: Act = lambda world: setattr(world.kueue, "open", False)  # noqa: E731

UNGROUP: Act = lambda world: world.gangs.delete()  # noqa: E731

STORIES: dict[str, Story] = {
    "finishes": finishes,
    "fails and recovers": _story(1, fails(), "Succeeded"),
    "gets other pods": _story(1, fails(), 2, fails(), 3, fails(), "Succeeded"),
    "waits long for other pods": _story(
        change(recovery={"backoff": {"initial": "60s"}}), 1, fails(), 2, fails(), 3, fails(), "Succeeded"
    ),
    "gets another cluster": _story(1, loses("head", "gone"), "Succeeded"),
    "avoids a slow node": _story(1, SLOW, "Succeeded"),
    "loses a worker": _story(1, loses("worker", "failed"), fails(), "Succeeded"),
    "loses its reward models": _story(
        1, server("failed"), server("evicted"), fails(), 2, loses("head", "gone"), "Succeeded"
    ),
    "loses its head while servers load": _story(
        1, SUSPEND, "Suspended", RESUME, until(is_provisioned, servers=False), loses("head", "failed"), "Succeeded"
    ),
    "forgets its driver": _story(1, RESTARTS, "Succeeded"),
    "is done and forgotten": _story(1, fails(0), RESTARTS, "Succeeded"),
    "is suspended and resumed": _story(1, SUSPEND, "Suspended", RESUME, "Succeeded"),
    "is reshaped while it stops": _story(
        1, SUSPEND, "Suspending", lambda world: world.user.other_shape(), RESUME, "Succeeded"
    ),
    "is resumed while it stops": _story(
        1, SUSPEND, until(lambda world: world.server.find(RAY_CLUSTER, KEY) is None), RESUME, "Succeeded"
    ),
    "is resumed before its driver stops": _story(1, SUSPEND, until(suspending, drivers=False), RESUME, "Succeeded"),
    "does not listen": _story(1, SUSPEND, until(lambda world: phase(world) == "Suspended", drivers=False)),
    "is wrong": _story(1, fails(65), "Failed"),
    "takes too long": _story(change(activeDeadline="1m"), until(lambda world: phase(world) == "Failed", drivers=False)),
    "is evicted": _story(1, EVICT, "Succeeded"),
    "is evicted and waits": _story(1, STOP_ADMITTING, EVICT, until(stopped), ADMIT, "Succeeded"),
    "is evicted and does not listen": _story(1, EVICT, until(stopped, drivers=False), "Succeeded"),
    "loses its Workload": _story(1, lambda world: world.kueue.delete(), "Succeeded"),
    "is deactivated": _story(
        1, lambda world: world.kueue.activate(active=False), until(stopped),
        lambda world: world.kueue.activate(active=True), "Succeeded",
    ),
    "is given up by Kueue": _story(
        1, lambda world: world.kueue.give_up(), until(stopped), lambda world: world.kueue.activate(active=True),
        "Succeeded",
    ),
    "loses its PodGroup and another pod": _story(1, UNGROUP, loses("worker", "failed"), fails(), "Succeeded"),
    "loses its PodGroup and its head": _story(1, UNGROUP, loses("head", "gone"), "Succeeded"),
    "has another gang": _story(1, SUSPEND, lambda world: world.user.another_scheduler(), RESUME, "Succeeded"),
    "is deleted": _story(1, deleted("Background"), GONE),
    "is deleted in the foreground": _story(1, deleted("Foreground"), GONE),
    "is deleted by force": _story(1, lambda world: world.user.delete_by_force(), GONE),
    "is followed by another": _story(1, deleted("Background"), GONE, lambda world: world.user.create(), "Succeeded"),
    "waits for its first images": _story(no_image(SILENT, *names.ROLES), BACKS_OFF, PULLABLE, "Succeeded"),
    "waits for the image of another worker": _story(
        1, no_image(DENIED, names.WORKER), loses("worker", "failed"), fails(), DENIED, PULLABLE, "Succeeded"
    ),
    "waits for the image of another head": _story(
        1, no_image(DENIED, names.HEAD), loses("head", "gone"), DENIED, PULLABLE, "Succeeded"
    ),
    "waits for the image of another server": _story(
        1, no_image(DENIED, names.REWARD_MODEL), server("failed"), fails(), DENIED, PULLABLE, "Succeeded"
    ),
    "is resumed with a wrong image": _story(
        1, SUSPEND, "Suspended", lambda world: world.user.names(NOWHERE, suspend=False), NOWHERE,
        lambda world: world.user.mends_images(), "Suspended", RESUME, "Succeeded",
    ),
    "begins with a wrong image": _story(
        lambda world: world.user.names(NOWHERE, suspend=True), RESUME, "Failed"
    ),
}  # fmt: skip

fails_and_recovers = STORIES["fails and recovers"]
