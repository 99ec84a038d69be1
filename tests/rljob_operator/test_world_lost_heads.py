"""Jobs whose heads are lost or fall silent where that is no attempt's end."""

from rljob_operator.kube.kinds import RAY_CLUSTER, Manifest
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.user import KEY
from tests.rljob_operator.world.world import World


def uid(world: World) -> str | None:
    """Of the RayCluster."""
    cluster = world.server.find(RAY_CLUSTER, KEY)
    return None if cluster is None else str(cluster["metadata"]["uid"])


@in_jumping_loop
async def test_a_job_that_waits_for_its_workers_quota_outlives_any_number_of_heads() -> None:
    world = World()
    make, refused = world.kuberay._make, True

    def within_quota(cluster: Manifest, kind: str, group: Manifest) -> None:
        if kind == "head" or not refused:
            make(cluster, kind, group)

    world.kuberay._make = within_quota  # type: ignore[method-assign]
    world.user.create(recovery={"maxRestarts": 0})
    await world.start()
    lost = set[str | None]()
    for _ in range(3):
        assert await world.until(lambda: stories.is_provisioned(world) and uid(world) not in lost)
        lost.add(uid(world))
        world.trouble.pod_is_lost("head", "gone")
    refused = False
    await stories.finishes(world)
    assert world.user.job is not None
    status = world.user.job["status"]
    assert (status["phase"], status["attempt"], status.get("restarts", 0)) == ("Succeeded", 1, 0)
