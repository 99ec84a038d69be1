"""Lives of jobs, each told until nothing is left to happen. Where something disturbs one, it goes on all the same."""

from collections.abc import Awaitable, Callable

from rljob_operator import names
from rljob_operator.kube.kinds import RAY_CLUSTER
from tests.rljob_operator.world.images import BACKS_OFF, DENIED, NOWHERE, SILENT
from tests.rljob_operator.world.kuberay import holds
from tests.rljob_operator.world.user import KEY
from tests.rljob_operator.world.world import World

Story = Callable[[World], Awaitable[None]]


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


async def fails_and_goes_on(world: World) -> None:
    await attempt(world, 1)
    world.trouble.driver_ends(75)
    await finishes(world)


async def gets_other_pods(world: World) -> None:
    """The third failure in a row is cured by other worker pods."""
    for number in (1, 2, 3):
        await attempt(world, number)
        world.trouble.driver_ends(75)
    await finishes(world)


async def waits_long_for_other_pods(world: World) -> None:
    """They are there long before it goes on."""
    world.user.change(recovery={"backoff": {"initial": "60s"}})
    await gets_other_pods(world)


async def gets_another_cluster(world: World) -> None:
    await attempt(world, 1)
    world.trouble.pod_is_lost("head", "gone")
    await finishes(world)


async def loses_a_worker(world: World) -> None:
    await attempt(world, 1)
    world.trouble.pod_is_lost("worker", "failed")
    world.trouble.driver_ends(75)
    await finishes(world)


async def loses_its_reward_models(world: World) -> None:
    """Both servers, and then the cluster beside them."""
    await attempt(world, 1)
    world.trouble.server_is_lost("failed")
    world.trouble.server_is_lost("evicted")
    world.trouble.driver_ends(75)
    await attempt(world, 2)
    world.trouble.pod_is_lost("head", "gone")
    await finishes(world)


async def _waits_and_goes_on(world: World, words: str) -> None:
    """Until the registries answer again, which is after the status has said these words."""
    await world.until(lambda: words in ready(world))
    world.images.out.clear()
    await finishes(world)


async def waits_for_its_first_images(world: World) -> None:
    for role in names.ROLES:
        world.images.out[role] = SILENT
    await _waits_and_goes_on(world, BACKS_OFF)


async def waits_for_the_image_of_another_worker(world: World) -> None:
    """Its cluster was up, so a registry that says no says nothing for ever."""
    await attempt(world, 1)
    world.images.out[names.WORKER] = DENIED
    world.trouble.pod_is_lost("worker", "failed")
    world.trouble.driver_ends(75)
    await _waits_and_goes_on(world, DENIED)


async def waits_for_the_image_of_another_head(world: World) -> None:
    """In a cluster that was never up."""
    await attempt(world, 1)
    world.images.out[names.HEAD] = DENIED
    world.trouble.pod_is_lost("head", "gone")
    await _waits_and_goes_on(world, DENIED)


async def waits_for_the_image_of_another_server(world: World) -> None:
    await attempt(world, 1)
    world.images.out[names.REWARD_MODEL] = DENIED
    world.trouble.server_is_lost("failed")
    world.trouble.driver_ends(75)
    await _waits_and_goes_on(world, DENIED)


async def is_resumed_with_a_wrong_image(world: World) -> None:
    """It waits until that is mended, for it has checkpoints."""
    await attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: phase(world) == "Suspended")
    world.user.names(NOWHERE, suspend=False)
    await world.until(lambda: NOWHERE in ready(world))
    world.user.mends_images()
    await world.until(lambda: phase(world) == "Suspended")
    world.user.change(suspend=False)
    await finishes(world)


async def begins_with_a_wrong_image(world: World) -> None:
    world.user.names(NOWHERE, suspend=True)
    world.user.change(suspend=False)
    await world.until(lambda: phase(world) == "Failed")


async def forgets_its_driver(world: World) -> None:
    await attempt(world, 1)
    world.trouble.head_restarts()
    await finishes(world)


async def is_done_and_forgotten(world: World) -> None:
    """Its driver has done all steps, and Ray's container ends before anybody looks."""
    await attempt(world, 1)
    world.trouble.driver_ends(0)
    await forgets_its_driver(world)


async def loses_its_head_while_servers_load(world: World) -> None:
    """Ray is up long before them, and no attempt has begun in it."""
    await attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: phase(world) == "Suspended")
    world.user.change(suspend=False)
    await world.until(lambda: is_provisioned(world), servers=False)
    world.trouble.pod_is_lost("head", "failed")
    await finishes(world)


async def is_suspended_and_resumed(world: World) -> None:
    await attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: phase(world) == "Suspended")
    world.user.change(suspend=False)
    await finishes(world)


async def is_reshaped_while_it_stops(world: World) -> None:
    """And resumed at once."""
    await attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: phase(world) == "Suspending")
    world.user.other_shape()
    world.user.change(suspend=False)
    await finishes(world)


async def is_resumed_while_it_stops(world: World) -> None:
    await attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: world.server.find(RAY_CLUSTER, KEY) is None)
    world.user.change(suspend=False)
    await finishes(world)


async def is_resumed_before_its_driver_stops(world: World) -> None:
    """It may never have heard that it should."""
    await attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: phase(world) == "Suspending", drivers=False)
    world.user.change(suspend=False)
    await finishes(world)


async def does_not_listen(world: World) -> None:
    """The driver neither works nor stops, so its grace period has to pass."""
    await attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: phase(world) == "Suspended", drivers=False)


async def is_wrong(world: World) -> None:
    await attempt(world, 1)
    world.trouble.driver_ends(65)
    await world.until(lambda: phase(world) == "Failed")


async def takes_too_long(world: World) -> None:
    world.user.change(activeDeadline="1m")
    await world.until(lambda: phase(world) == "Failed", drivers=False)


async def is_deleted(world: World) -> None:
    await attempt(world, 1)
    world.user.delete()
    await world.until(lambda: world.user.job is None)


async def is_deleted_in_the_foreground(world: World) -> None:
    await attempt(world, 1)
    world.user.delete("Foreground")
    await world.until(lambda: world.user.job is None)


async def is_followed_by_another(world: World) -> None:
    """Of the same name."""
    await is_deleted(world)
    world.user.create()
    await finishes(world)


_TOLD = (
    finishes, fails_and_goes_on, gets_other_pods, waits_long_for_other_pods, gets_another_cluster, loses_a_worker,
    loses_its_reward_models, loses_its_head_while_servers_load, forgets_its_driver, is_done_and_forgotten,
    is_suspended_and_resumed, is_reshaped_while_it_stops, is_resumed_while_it_stops, is_resumed_before_its_driver_stops,
    does_not_listen, is_wrong, takes_too_long, is_deleted, is_deleted_in_the_foreground, is_followed_by_another,
    waits_for_its_first_images, waits_for_the_image_of_another_worker, waits_for_the_image_of_another_head,
    waits_for_the_image_of_another_server, is_resumed_with_a_wrong_image, begins_with_a_wrong_image,
)  # fmt: skip

STORIES: dict[str, Story] = {story.__name__.replace("_", " "): story for story in _TOLD}
