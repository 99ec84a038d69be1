"""What a job's life costs the API server where nothing goes wrong, and in which order."""

import pytest

from rljob_operator import names
from rljob_operator.kube.kinds import EVENT, NETWORK_POLICY, POD, RAY_CLUSTER, SECRET, VOLUME_CLAIM, Key, Kind, Manifest
from tests.rljob_operator.loops import in_jumping_loop
from tests.rljob_operator.world import stories
from tests.rljob_operator.world.api_server import kind_of
from tests.rljob_operator.world.ending import check_nothing_runs
from tests.rljob_operator.world.user import KEY, SERVED
from tests.rljob_operator.world.wire import Call, Fate, Turn
from tests.rljob_operator.world.world import World


@in_jumping_loop
async def test_a_secret_that_somebody_deletes_is_put_back_for_pods_that_wait_for_it_and_for_no_others() -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    world.trouble.secret_is_deleted()
    await world.rest(drivers=False)
    assert world.server.all(SECRET) == [], "nobody waits for it, and nobody looks"
    world.trouble.pod_is_lost("worker", "failed")
    world.trouble.driver_ends(75)
    await stories.finishes(world)
    assert stories.phase(world) == "Succeeded"
    assert [call.words for call in world.calls].count("post Secret") == 2


@in_jumping_loop
async def test_what_pods_need_is_made_before_them_and_the_status_written_once_for_each_transition() -> None:
    world = World()
    world.user.create()
    await world.start()
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
    world = World()
    world.user.create()
    await world.start()
    await stories.fails_and_goes_on(world)
    told = world.server.all(EVENT)
    assert [each["reason"] for each in told] == [
        "AllPodsReady", "AttemptStarting", "DriverRunning", "Infrastructure", "AttemptStarting", "DriverRunning",
        "CheckpointSaved", "Completed",
    ]  # fmt: skip
    assert told == sorted(told, key=lambda each: each["metadata"]["name"])
    assert told == sorted(told, key=lambda each: each["eventTime"])


@in_jumping_loop
async def test_a_suspension_is_told_once_when_nothing_runs_any_more() -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: stories.phase(world) == "Suspending", drivers=False)
    told = [each["reason"] for each in world.server.all(EVENT)]
    assert "Suspended" not in told, "the driver saves a checkpoint first"
    await world.until(lambda: stories.phase(world) == "Suspended")
    assert [each["reason"] for each in world.server.all(EVENT)] == [*told, "Suspended"]


@in_jumping_loop
async def test_an_object_whose_label_somebody_took_away_is_put_right() -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    found = world.server.get(NETWORK_POLICY, KEY)
    world.server.patch(NETWORK_POLICY, KEY, {"metadata": {"labels": None}})
    await world.rest(drivers=False)
    assert world.server.get(NETWORK_POLICY, KEY)["metadata"]["labels"] == found["metadata"]["labels"]
    assert world.server.get(NETWORK_POLICY, KEY)["metadata"]["uid"] == found["metadata"]["uid"]
    await stories.finishes(world)


UNLABELLED = pytest.mark.parametrize("labels", [None, {names.JOB_LABEL: "other"}], ids=["removed", "changed"])


@UNLABELLED
@in_jumping_loop
async def test_a_cluster_that_loses_its_label_gets_it_back_and_its_driver_trains_on(labels: Manifest | None) -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    found = world.server.get(RAY_CLUSTER, KEY)
    world.server.patch(RAY_CLUSTER, KEY, {"metadata": {"labels": labels}})
    await world.live(drivers=False)
    assert world.server.get(RAY_CLUSTER, KEY)["metadata"]["labels"] == found["metadata"]["labels"]
    await stories.finishes(world)
    assert world.user.job is not None
    status = world.user.job["status"]
    assert (status["phase"], status["attempt"], status.get("restarts", 0)) == ("Succeeded", 1, 0)


@in_jumping_loop
async def test_a_head_pod_that_is_drained_costs_another_cluster_and_no_restart() -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    before = world.server.get(RAY_CLUSTER, KEY)["metadata"]["uid"]
    world.trouble.pod_is_lost("head", "evicted")
    await world.deliver()  # it takes longer to end than the watch to tell
    await stories.attempt(world, 2)
    assert world.server.get(RAY_CLUSTER, KEY)["metadata"]["uid"] != before
    await stories.finishes(world)
    assert world.user.job is not None
    status = world.user.job["status"]
    assert (status["phase"], status["attempt"], status.get("restarts", 0)) == ("Succeeded", 2, 0)


@in_jumping_loop
async def test_so_does_one_that_loses_it_before_a_driver_has_begun() -> None:
    world = World()
    world.user.create()
    await world.start()
    await world.settle()
    world.server.patch(RAY_CLUSTER, KEY, {"metadata": {"labels": None}})
    await stories.finishes(world)
    assert stories.phase(world) == "Succeeded"


@UNLABELLED
@in_jumping_loop
async def test_a_claim_that_loses_its_label_gets_it_back_and_its_checkpoint_is_not_said_to_be_lost(
    labels: Manifest | None,
) -> None:
    world, claim = World(), Key(KEY.namespace, names.claim(KEY.name))
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    world.user.change(suspend=True)
    await world.until(lambda: stories.phase(world) == "Suspended")
    assert world.user.job is not None
    saved = world.user.job["status"]["checkpoint"]
    world.server.patch(VOLUME_CLAIM, claim, {"metadata": {"labels": labels}})
    await world.rest()
    assert world.server.get(VOLUME_CLAIM, claim)["metadata"]["labels"][names.JOB_LABEL] == KEY.name
    assert world.user.job["status"]["checkpoint"] == saved
    assert "CheckpointLost" not in [each["reason"] for each in world.server.all(EVENT)]


def lose_labels(world: World, *kinds: Kind) -> None:
    for kind in kinds:
        for each in world.server.all(kind):
            world.server.patch(kind, Key.of(each), {"metadata": {"labels": {names.JOB_LABEL: None}}})


@in_jumping_loop
async def test_a_job_is_not_said_to_be_suspended_while_there_is_a_cluster_that_no_watch_tells_of() -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    lose_labels(world, RAY_CLUSTER, POD)
    world.user.change(suspend=True)
    assert await world.until(lambda: stories.phase(world) == "Suspended")
    assert world.server.find(RAY_CLUSTER, KEY) is None
    await world.rest()
    check_nothing_runs(world)


@in_jumping_loop
async def test_nor_is_a_job_gone_before_a_cluster_and_pods_that_no_watch_tells_of() -> None:
    """Which the world checks."""
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    lose_labels(world, RAY_CLUSTER, POD)
    world.user.delete()
    assert await world.until(lambda: world.user.job is None)


@in_jumping_loop
async def test_pods_that_lose_their_label_are_named_and_their_driver_trains_on() -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    lose_labels(world, POD)
    pod = world.server.all(POD)[0]["metadata"]["name"]

    def said() -> str:
        conditions = (world.user.job or {})["status"]["conditions"]
        return str(next(each["message"] for each in conditions if each["type"] == "ClusterReady"))

    assert await world.until(lambda: f"somebody took the label rljob.dev/job off {pod}" in said(), drivers=False)
    assert stories.phase(world) == "Running"
    await stories.finishes(world)
    assert world.user.job is not None
    status = world.user.job["status"]
    assert (status["phase"], status["attempt"], status.get("restarts", 0)) == ("Succeeded", 1, 0)


@in_jumping_loop
async def test_a_cluster_that_is_gone_is_not_looked_for_again_however_long_its_pods_take_to_end() -> None:
    world = World()
    world.user.create()
    await world.start()
    await stories.attempt(world, 1)
    world.streams.stalled.add(POD)
    world.user.change(suspend=True)
    await world.until(lambda: world.server.find(RAY_CLUSTER, KEY) is None)
    asked = len(world.calls)
    for _ in range(5):
        await world.live()
    assert stories.phase(world) == "Suspending"
    assert [call.words for call in world.calls[asked:]].count("get RayCluster") <= 2


@in_jumping_loop
async def test_a_cluster_that_does_not_keep_its_label_is_told_of_and_gets_it_at_a_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody takes it away, again and again."""
    world = World()
    world.user.create()
    await world.start()
    await world.settle()
    patched = world.server.patch
    unlabelled: Manifest = {"metadata": {"labels": None}}

    def patch(kind: Kind, key: Key, written: Manifest, subresource: str | None = None) -> Manifest:
        labels = "labels" in written.get("metadata", {})
        return patched(kind, key, unlabelled if labels else written, subresource)

    monkeypatch.setattr(world.server, "patch", patch)
    world.server.patch(RAY_CLUSTER, KEY, unlabelled)
    world.user.more_steps()  # there is something to say, and it is not said before there is a cluster
    asked = len(world.calls)
    for _ in range(10):
        world.process.resync()
        await world.settle()
        world.process.queue.add(KEY)
        await world.settle()
        await world.deliver()
    assert 0 < [call.words for call in world.calls[asked:]].count("patch RayCluster") <= 20
    assert "RayCluster job exists, and no list shows it" in stories.ready(world)

    monkeypatch.undo()
    world.server.patch(RAY_CLUSTER, KEY, {"metadata": {"labels": dict(names.labels(KEY.name))}})
    await stories.finishes(world)
    assert stories.phase(world) == "Succeeded"


@in_jumping_loop
async def test_what_ray_answers_where_it_does_not_take_a_driver_is_said() -> None:
    world = World()
    said: list[str] = []

    def told() -> None:
        status = (world.user.job or {}).get("status", {})
        said.extend(each["message"] for each in status.get("conditions", ()) if each["type"] == "Ready")

    failing = 3

    def turn(call: Call) -> Turn:
        nonlocal failing
        told()
        if not call.kube and call.writes and failing:
            failing -= 1
            return Turn(Fate.FAILED)
        return Turn()

    world.next_turn = turn
    world.user.create()
    await world.start()
    await stories.finishes(world)
    assert failing == 0
    assert any(each.startswith("Ray does not take the driver, and is asked again: ") for each in said)


CLAIM = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Ti"}}}

FOREIGN: list[tuple[str, Manifest]] = [
    ("job", {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}}),
    ("job", {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"minAvailable": 1}}),
    ("job-job", {"apiVersion": "v1", "kind": "ConfigMap", "data": {"job.json": "{}"}}),
    ("job-checkpoints", {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": CLAIM}),
    ("job-rm-rm", {"apiVersion": "v1", "kind": "Service", "spec": {}}),
    ("job-head-svc", {"apiVersion": "v1", "kind": "Service", "spec": {}}),
    ("job-rm-rm", {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 0, "template": {}}}),
]


@pytest.mark.parametrize(("name", "manifest"), FOREIGN, ids=[f"{each['kind']} {name}" for name, each in FOREIGN])
@in_jumping_loop
async def test_what_somebody_else_has_made_is_never_taken_over(name: str, manifest: Manifest) -> None:
    world = World()
    theirs = world.server.create({**manifest, "metadata": {"namespace": KEY.namespace, "name": name}})
    world.user.create(**(SERVED if "-rm-" in name else {}))
    await world.start()
    await world.rest()
    assert world.user.job is not None
    stalled = next(each for each in world.user.job["status"]["conditions"] if each["type"] == "Stalled")
    assert (stalled["status"], stalled["reason"], stalled["message"]) == ("True", "NameTaken", stories.ready(world))
    assert stories.ready(world).startswith(f"{manifest['kind']} {name} exists and is not this job's: choose another")
    assert ("for its reward model" in stories.ready(world)) == ("-rm-" in name)
    assert [each["reason"] for each in world.server.all(EVENT)].count("NameTaken") == 1
    found = world.server.get(kind_of(theirs), Key.of(theirs))
    assert [found.get(part) for part in ("spec", "data")] == [theirs.get(part) for part in ("spec", "data")]
    assert found["metadata"] | {"resourceVersion": ""} == theirs["metadata"] | {"resourceVersion": ""}
    world.server.delete(theirs)
    await stories.finishes(world)
    assert stories.phase(world) == "Succeeded"


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
    assert world.user.job is not None
    stalled = next(each for each in world.user.job["status"]["conditions"] if each["type"] == "Stalled")
    assert (stories.phase(world), stalled["reason"]) == ("Starting", "NameTaken")
    assert stories.ready(world) == (
        "PersistentVolumeClaim job-checkpoints has accessModes ReadWriteOnce, which never changes, and the job asks for"
        " ReadWriteMany (spec.checkpoint.volume.accessMode): delete the claim, if nobody needs what is in it; or make"
        " the RLJob anew, with what the claim has, or with it as spec.checkpoint.volume.existingClaim; with a subPath"
        " if it holds a run"
    )
    assert world.server.get(VOLUME_CLAIM, Key.of(theirs))["spec"] == spec
    world.server.delete(theirs)
    await stories.finishes(world)
    assert stories.phase(world) == "Succeeded"


@in_jumping_loop
async def test_nor_is_somebody_else_s_ray_cluster() -> None:
    world = World()
    metadata = {"namespace": KEY.namespace, "name": KEY.name}
    theirs = world.server.create({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata})
    world.user.create()
    await world.start()
    await world.settle()
    assert stories.ready(world).startswith("RayCluster job exists and is not this job's: choose another name")
    assert world.server.get(RAY_CLUSTER, KEY) == theirs
    world.server.delete(theirs)
    await stories.finishes(world)
    assert stories.phase(world) == "Succeeded"
