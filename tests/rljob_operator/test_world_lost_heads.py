"""Jobs whose heads are lost or fall silent, or whose cluster's status KubeRay does not renew."""

import pytest

from rljob_operator import names
from rljob_operator.kube.kinds import POD, RAY_CLUSTER, Manifest
from rljob_operator.observe.snapshot import role_of
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.controllers import is_ready
from tests.rljob_operator.world.user import KEY
from tests.rljob_operator.world.world import World


def uid(world: World) -> str | None:
    """Of the RayCluster."""
    cluster = world.server.find(RAY_CLUSTER, KEY)
    return None if cluster is None else str(cluster["metadata"]["uid"])


@pytest.mark.parametrize("quota", [0, 1])
@in_jumping_loop
async def test_a_job_that_waits_for_its_workers_quota_outlives_any_number_of_heads(
    quota: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    make, refused = world.kuberay._make, True

    def within_quota(cluster: Manifest, kind: str, group: Manifest) -> None:
        workers = [pod for pod in world.server.all(POD) if role_of(pod) == "worker"]
        if kind == "head" or not refused or len(workers) < quota:
            make(cluster, kind, group)

    monkeypatch.setattr(world.kuberay, "_make", within_quota)
    world.user.create(recovery={"maxRestarts": 0}, cluster={"nodes": 2})
    await world.start()
    lost = set[str | None]()
    for _ in range(3):
        assert await world.until(lambda: stories.is_provisioned(world) and uid(world) not in lost)
        lost.add(uid(world))
        world.trouble.pod_is_lost("head", "gone")
    refused = False
    await stories.finishes(world)
    assert stories.ended(world) == ("Succeeded", 1, 0)


@in_jumping_loop
async def test_no_driver_trains_on_for_a_job_that_has_failed_while_it_was_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    step, cut = world.nodes.step, True

    def without_a_ready_head(pod: Manifest) -> bool:
        if not (cut and world.heads.drivers and role_of(pod) == names.HEAD):
            return step(pod)
        if is_ready(pod):
            world.nodes._says(pod, {}, ready=False)
        return False

    monkeypatch.setattr(world.nodes, "step", without_a_ready_head)
    world.user.create(ttlAfterFinished="24h", recovery={"maxRestarts": 0}, training={"steps": 100_000})
    await world.start()
    assert await world.until(lambda: stories.phase(world) == "Failed")
    cut = False
    assert await world.until(lambda: not world.heads.living())
    assert world.server.find(RAY_CLUSTER, KEY) is None


@pytest.mark.parametrize("how", ["failed", "gone"])
@in_jumping_loop
async def test_a_job_whose_head_pod_is_lost_while_kuberay_is_away_does_not_go_on_saying_that_it_runs(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await stories.born(1)
    with monkeypatch.context() as away:
        away.setattr(world.kuberay, "step", lambda: False)
        world.trouble.pod_is_lost("head", how)
        assert await world.until(lambda: stories.phase(world) == "Recovering", drivers=False)
    assert await world.until(lambda: stories.phase(world) == "Succeeded")
