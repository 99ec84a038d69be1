"""What a job's life costs the API server where nothing goes wrong, and in which order."""

import pytest

from rljob_operator import names
from rljob_operator.kube.kinds import EVENT, RAY_CLUSTER, SECRET, VOLUME_CLAIM, Key, Manifest
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.api_server import kind_of
from tests.rljob_operator.world.user import KEY, SERVED
from tests.rljob_operator.world.world import World


@in_jumping_loop
async def test_a_secret_that_somebody_deletes_is_put_back_for_pods_that_wait_for_it_and_for_no_others() -> None:
    world = await stories.born(1)
    world.trouble.secret_is_deleted()
    await world.rest(drivers=False)
    assert world.server.all(SECRET) == [], "nobody waits for it, and nobody looks"
    world.trouble.pod_is_lost("worker", "failed")
    world.trouble.driver_ends(75)
    await stories.succeeds(world)
    assert [call.words for call in world.calls].count("post Secret") == 2


@in_jumping_loop
async def test_what_pods_need_is_made_before_them_and_the_status_written_once_for_each_transition() -> None:
    world = await stories.born()
    await stories.finishes(world)
    writes = [call.words for call in world.calls if call.kube and call.writes]
    made = writes.index("post RayCluster")
    assert writes[0] == "patch RLJob", "the finalizer"
    assert sorted(writes[1:made]) == [
        "apply ConfigMap", "apply NetworkPolicy", "apply PersistentVolumeClaim", "apply PodDisruptionBudget",
        "post Secret",
    ]  # fmt: skip
    # Starting, the attempt's reservation, Ray has it; Running, a checkpoint, another; Succeeded.
    status, budget = "patch RLJob status", "apply PodDisruptionBudget"
    assert [words for words in writes[made + 1 :] if words != "post Event"] == [
        *[status] * 3, budget, *[status] * 3, budget, status,
    ]  # fmt: skip


@in_jumping_loop
async def test_events_of_a_life_have_names_and_times_in_their_order() -> None:
    world = await stories.born()
    await stories.fails_and_recovers(world)
    told = world.server.all(EVENT)
    assert [each["reason"] for each in told] == [
        "AllPodsReady", "AttemptStarting", "DriverRunning", "Infrastructure", "AttemptStarting", "DriverRunning",
        "CheckpointSaved", "Completed",
    ]  # fmt: skip
    assert told == sorted(told, key=lambda each: each["metadata"]["name"])
    assert told == sorted(told, key=lambda each: each["eventTime"])


@in_jumping_loop
async def test_a_suspension_is_told_once_when_nothing_runs_any_more() -> None:
    world = await stories.born(1)
    world.user.change(suspend=True)
    await world.until(lambda: stories.phase(world) == "Suspending", drivers=False)
    told = [each["reason"] for each in world.server.all(EVENT)]
    assert "Suspended" not in told, "the driver saves a checkpoint first"
    await world.until(lambda: stories.phase(world) == "Suspended")
    assert [each["reason"] for each in world.server.all(EVENT)] == [*told, "Suspended"]


@in_jumping_loop
async def test_a_head_pod_that_is_drained_costs_another_cluster_and_no_restart() -> None:
    world = await stories.born(1)
    before = world.server.get(RAY_CLUSTER, KEY)["metadata"]["uid"]
    world.trouble.pod_is_lost("head", "evicted")
    await world.deliver()  # it takes longer to end than the watch to tell
    await stories.attempt(world, 2)
    assert world.server.get(RAY_CLUSTER, KEY)["metadata"]["uid"] != before
    await stories.finishes(world)
    assert stories.ended(world) == ("Succeeded", 2, 0)


def stalled(world: World) -> Manifest:
    assert world.user.job is not None
    found: Manifest = next(each for each in world.user.job["status"]["conditions"] if each["type"] == "Stalled")
    return found


CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}

FOREIGN: list[tuple[str, Manifest]] = [
    ("job", {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}}),
    ("job", {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"minAvailable": 1}}),
    ("job-job", {"apiVersion": "v1", "kind": "ConfigMap", "data": {"job.json": "{}"}}),
    ("job-checkpoints", {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": CLAIM}),
    ("job-rm-rm", {"apiVersion": "v1", "kind": "Service", "spec": {}}),
    ("job", {"apiVersion": "ray.io/v1", "kind": "RayCluster", "spec": {"workerGroupSpecs": [{"replicas": 0}]}}),
    ("job-rm-rm", {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 0, "template": {}}}),
]


@pytest.mark.parametrize(("name", "manifest"), FOREIGN, ids=[f"{each['kind']} {name}" for name, each in FOREIGN])
@in_jumping_loop
async def test_what_somebody_else_has_made_is_never_taken_over(name: str, manifest: Manifest) -> None:
    world = World()
    theirs = world.server.create({**manifest, "metadata": {"namespace": KEY.namespace, "name": name}})
    world.user.create(**(SERVED if "-rm-" in name else {}))
    await world.start()
    await (world.settle() if kind_of(theirs) == RAY_CLUSTER else world.rest())  # KubeRay would take it for one
    found = stalled(world)
    assert (found["status"], found["reason"], found["message"]) == ("True", "NameTaken", stories.ready(world))
    assert stories.ready(world).startswith(f"{manifest['kind']} {name} exists and does not belong to this job")
    assert [each["reason"] for each in world.server.all(EVENT)].count("NameTaken") == 1
    found = world.server.get(kind_of(theirs), Key.of(theirs))
    assert [found.get(part) for part in ("spec", "data")] == [theirs.get(part) for part in ("spec", "data")]
    assert found["metadata"] | {"resourceVersion": ""} == theirs["metadata"] | {"resourceVersion": ""}
    world.server.delete(theirs)
    await stories.succeeds(world)


@in_jumping_loop
async def test_a_claim_that_an_earlier_job_has_left_is_waited_for_where_it_has_another_shape() -> None:
    """Of the API server it would be an invalid object, which fails a new job for good."""
    world = World()
    labels, maker = dict(names.labels(KEY.name)), {names.MAKER_ANNOTATION: "an earlier job"}
    metadata = {"namespace": KEY.namespace, "name": names.claim(KEY.name), "labels": labels, "annotations": maker}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "100Gi"}}}
    kept = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}
    theirs = world.server.create(kept)
    world.user.create()
    await world.start()
    await world.rest()
    assert (stories.phase(world), stalled(world)["reason"]) == ("Starting", "NameTaken")
    for words in ("PersistentVolumeClaim job-checkpoints", "spec is immutable", "spec.checkpoint.volume"):
        assert words in stories.ready(world)
    assert world.server.get(VOLUME_CLAIM, Key.of(theirs))["spec"] == spec
    world.server.delete(theirs)
    await stories.succeeds(world)
