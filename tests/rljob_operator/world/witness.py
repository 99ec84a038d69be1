"""The real Performer, watched: no plan may claim or do what its snapshot does not show.

Nothing here asks the code that decides: what a cluster or a driver is, is read from manifests and reports once more.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import RLJobStatus
from rljob_operator import names
from rljob_operator.kube.kinds import DEPLOYMENT, RAY_CLUSTER, Manifest
from rljob_operator.observe.snapshot import Snapshot, is_deleting
from rljob_operator.perform.performer import Performer
from rljob_operator.plan import Plan
from tests.rljob_operator.world.controllers import is_ready
from tests.rljob_operator.world.images import IMAGE, is_unpulled, refused

TERMINAL = ("Succeeded", "Failed")


class Witness(Performer):
    """doomed: uids of all that plans have named for deletion."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.doomed: set[str] = set()

    async def perform(self, snapshot: Snapshot, plan: Plan) -> None:
        check_actions(snapshot, plan)
        if plan.status is not None:
            check_claims(snapshot, plan.status)
        check_reason(snapshot, plan.status or snapshot.job.status)
        self.doomed |= {ref.uid for ref in (*plan.delete, *plan.short_grace)}
        await super().perform(snapshot, plan)


def check_actions(snapshot: Snapshot, plan: Plan) -> None:
    """What is done is for what is there, and for a job that is wanted."""
    job, status = snapshot.job, snapshot.job.status
    children = [each for kind in snapshot.children.values() for each in kind.values()]
    known = {each["metadata"]["uid"] for each in (*children, *snapshot.pods)}
    assert {ref.uid for ref in plan.delete} <= known, "it deletes what it has not seen"
    wanted = job.deleted is None and status.phase not in TERMINAL and job.problem is None and not job.spec.suspend
    if any(each["kind"] == RAY_CLUSTER.name for each in plan.create):
        assert wanted, "it makes a cluster for a job that nobody wants to run"
        assert snapshot.cluster is None, "it makes a second cluster"
        assert not _of_ray(snapshot), (
            "it makes a cluster beside pods of another, which KubeRay would take for the new one's"
        )
        kinds = [
            each["kind"] for each in (*plan.apply, *(each for each in snapshot.pod_groups if not is_deleting(each)))
        ]
        assert job.spec.gang.scheduler == "none" or "PodGroup" in kinds, "it makes a cluster without a PodGroup"
    if plan.submit is not None:
        driver, head = status.driver, snapshot.head
        assert wanted, "it starts a driver for a job that nobody wants to run"
        assert driver is not None, "it starts a driver without a reservation"
        assert driver.state == "Reserved", "it starts a driver that has been started"
        assert plan.submit.id == driver.submission_id == names.submission(job.uid, status.attempt)
        assert driver.cluster_uid == snapshot.cluster_uid, "it starts a driver on another cluster"
        assert head is not None, "it starts a driver without a look at the head"
        assert head.driver is None, "it starts a driver that Ray knows"


def check_reason(snapshot: Snapshot, told: RLJobStatus) -> None:
    """What a job that is to run waits for is not over: neither in what is said now, nor in what is left to stand."""
    ready = next((each for each in told.conditions if each.type == "Ready"), None)
    if ready is not None and told.phase in ("Starting", "Recovering") and snapshot.job.deleted is None:
        assert _WAITS.get(ready.reason, _may_be)(snapshot), f"it says {ready.reason}, and that is over"


def check_claims(snapshot: Snapshot, told: RLJobStatus) -> None:
    job, cluster = snapshot.job, snapshot.cluster
    holds = {each.type for each in told.conditions if each.status == "True"}
    assert told.observed_generation == job.generation
    assert told.cluster is None or cluster is not None, "it names a cluster, and does not say that nobody knows"
    assert (told.cluster and told.cluster.uid) == snapshot.cluster_uid
    if told.cluster is not None and cluster is not None:
        assert told.cluster.ready_workers == cluster.get("status", {}).get("readyWorkerReplicas", 0)
    if "RewardModelsReady" in holds:
        assert _servers_are_up(snapshot), "reward models are not ready"
    if "ClusterReady" in holds:
        assert _cluster_is_up(snapshot), "the cluster is not ready"
    for field in ("progress", "checkpoint"):
        seen = getattr(snapshot.head, field, None), getattr(job.status, field)
        assert getattr(told, field) in seen, f"nobody reported this {field}"
    _check_phase(snapshot, told, holds)
    _check_driver(snapshot, told)
    _check_image(snapshot, told)


def _check_phase(snapshot: Snapshot, told: RLJobStatus, holds: set[str]) -> None:
    assert holds & {"Running", "Suspended", *TERMINAL} <= {told.phase}, "two phases at once"
    assert ("Ready" in holds) == (told.phase in ("Running", "Succeeded"))
    if told.phase == "Running" and snapshot.job.problem is not None:
        assert snapshot.cluster is not None, "it runs without a cluster"
    elif told.phase == "Running":
        assert _cluster_is_up(snapshot) or _beats(snapshot), "it runs on a cluster that is not up, and is not heard"
        assert _runs(snapshot), "no driver runs"
    if told.phase == "Succeeded" != snapshot.job.status.phase:
        assert _ended_with(snapshot) == 0, "the driver did not end with 0"
    if told.phase == "Suspended":
        assert snapshot.cluster is None, "it still has a cluster"
        assert not snapshot.pods, "it still has pods"


def _check_image(snapshot: Snapshot, told: RLJobStatus) -> None:
    """What an image keeps from running is said of an image that the spec names, and that a pod lacks now."""
    ready = next(each for each in told.conditions if each.type == "Ready")
    if ready.reason == Reason.IMAGE_NOT_USABLE and snapshot.job.status.phase not in TERMINAL:
        lacked = _refused_images(snapshot)
        assert any(image in ready.message and said in ready.message for image, said in lacked), "no image is refused"
    if ready.reason == Reason.CLUSTER_NOT_READY:
        waiting = [pod["metadata"]["name"] for pod in _of_ray(snapshot) if is_unpulled(pod) and not is_deleting(pod)]
        assert not waiting or any(name in ready.message for name in waiting), f"it does not name any of {waiting}"


def _refused_images(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Those of the spec that a registry refuses to a pod that somebody waits for, with its words."""
    spec = snapshot.job.spec
    named = {spec.cluster.image or IMAGE, *(model.image for model in spec.rewards.models)}
    pods = [pod for pod in snapshot.pods if not is_deleting(pod)]
    return {(image, said) for pod in pods for image, said in refused(pod).items() if image in named}


def _check_driver(snapshot: Snapshot, told: RLJobStatus) -> None:
    before = snapshot.job.status
    assert told.attempt in (before.attempt, before.attempt + 1)
    assert told.restarts in (before.restarts, before.restarts + 1)
    if told.driver is None:
        assert told.attempt == 0
        return
    assert told.driver.submission_id == names.submission(snapshot.job.uid, told.attempt)
    if told.driver.state == "Submitted" and (before.driver is None or before.driver.state != "Submitted"):
        assert snapshot.head is not None, "nobody has seen the driver"
        assert snapshot.head.driver is not None, "Ray does not know the driver"
    if told.attempt > before.attempt:
        assert told.driver.state == "Reserved"
        assert told.driver.cluster_uid == snapshot.cluster_uid
        assert _cluster_is_up(snapshot)
        assert _servers_are_up(snapshot), "a driver that would wait for reward models"


def _beats(snapshot: Snapshot) -> bool:
    return snapshot.head is not None and snapshot.head.heartbeat is not None


def _of_ray(snapshot: Snapshot) -> list[Manifest]:
    return [pod for pod in snapshot.pods if "ray.io/cluster" in pod["metadata"]["labels"]]


def _servers_are_up(snapshot: Snapshot) -> bool:
    """Of every reward model there are as many as the spec wants, all of one template."""
    for model in snapshot.job.spec.rewards.models:
        found = snapshot.child(DEPLOYMENT, f"{snapshot.job.name}-rm-{model.name}")
        if found is None or is_deleting(found):
            return False
        status, wanted = found.get("status", {}), model.replicas
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return False
        if min(status.get("readyReplicas", 0), status.get("updatedReplicas", 0)) < wanted:
            return False
    return True


def _cluster_is_up(snapshot: Snapshot) -> bool:
    """KubeRay says so, and there are as many workers as there should be, all of which are ready."""
    cluster = snapshot.cluster
    if cluster is None or is_deleting(cluster):
        return False
    status, nodes = cluster.get("status", {}), snapshot.job.spec.cluster.nodes
    workers = [pod for pod in snapshot.pods_of(names.WORKER) if not is_deleting(pod)]
    return (
        _says(status, "HeadPodReady")
        and not any(pod["status"]["phase"] in ("Failed", "Succeeded") for pod in snapshot.pods_of(names.HEAD))
        and status.get("readyWorkerReplicas") == nodes == len(workers)
        and all(map(is_ready, workers))
    )


def _runs(snapshot: Snapshot) -> bool:
    """Ray says so, or the driver does, or nobody answers at the moment and it ran before."""
    driver, head = snapshot.job.status.driver, snapshot.head
    if driver is None or driver.cluster_uid != snapshot.cluster_uid:
        return False
    if head is None:
        return driver.state == "Submitted" and snapshot.job.status.phase == "Running" and snapshot.silent <= 65.0
    if head.driver is None or head.driver.state.is_final:
        return False
    return head.driver.state == "RUNNING" or head.heartbeat is not None


def _may_be(_snapshot: Snapshot) -> bool:
    return True


def _has_old_workers(snapshot: Snapshot) -> bool:
    decided = snapshot.job.status.recovery.decided
    made = [pod["metadata"]["creationTimestamp"] for pod in snapshot.pods_of(names.WORKER)]
    return decided is not None and any(datetime.fromisoformat(each) < decided for each in made)


def _has_old_cluster(snapshot: Snapshot) -> bool:
    return snapshot.cluster_uid is not None and snapshot.cluster_uid == snapshot.job.status.recovery.cluster_uid


def _is_left_over(snapshot: Snapshot) -> bool:
    return bool(_of_ray(snapshot)) if snapshot.cluster is None else is_deleting(snapshot.cluster)


_WAITS: Mapping[str, Callable[[Snapshot], bool]] = {
    Reason.CLUSTER_DELETING: _is_left_over,
    Reason.CLUSTER_NOT_READY: lambda snapshot: not _cluster_is_up(snapshot),
    Reason.REWARD_MODELS_NOT_READY: lambda snapshot: not _servers_are_up(snapshot),
    Reason.REPLACING_PODS: _has_old_workers,
    Reason.REBUILDING_CLUSTER: _has_old_cluster,
    Reason.HEAD_NOT_ANSWERING: lambda snapshot: snapshot.head is None,
    Reason.IMAGE_NOT_USABLE: lambda snapshot: bool(_refused_images(snapshot)),
}
"""Reasons, and what there is to wait for."""


def _ended_with(snapshot: Snapshot) -> int | None:
    head = snapshot.head
    if head is not None and head.driver is None and head.exit is not None:
        return head.exit.code
    if head is None or head.driver is None or not head.driver.state.is_final:
        return None
    return head.exit.code if head.exit is not None else head.driver.driver_exit_code


def _says(status: Manifest, kind: str) -> bool:
    return any(each["type"] == kind and each["status"] == "True" for each in status.get("conditions", ()))
