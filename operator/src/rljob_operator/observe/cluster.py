"""What a RayCluster and its pods say: ready, on the way, or broken. Pure functions of manifests."""

import re
from collections.abc import Iterator
from datetime import datetime

from rljob_api.v1alpha1 import ClusterStatus
from rljob_operator import names
from rljob_operator.kube.kinds import POD, VOLUME_CLAIM, Manifest
from rljob_operator.observe.pods import containers, how_it_ended, is_up, troubles, unscheduled
from rljob_operator.observe.snapshot import Snapshot, is_deleting, lost_pods, role_of, was_asked_to_end
from rljob_operator.observe.words import one_line

_PROVISIONED = "RayClusterProvisioned"
_INVALID_POD = re.compile(r'FailedCreate(Head|Worker)Pod:? (Pod "[^"]*" is invalid: .*)')
"""In KubeRay's words. One that is forbidden is another matter: quotas and webhooks change."""


def cluster_status(snapshot: Snapshot) -> ClusterStatus | None:
    cluster = snapshot.cluster
    if cluster is None:
        return None
    status, job = cluster.get("status", {}), snapshot.job
    return ClusterStatus(
        name=cluster["metadata"]["name"],
        uid=cluster["metadata"]["uid"],
        ready_workers=status.get("readyWorkerReplicas", 0),
        desired_workers=status.get("desiredWorkerReplicas", 0) if job.problem else job.spec.cluster.nodes,
    )


def is_ready(snapshot: Snapshot) -> bool:
    """RayClusterProvisioned alone would lie: it stays true after a pod is lost. So would KubeRay's count, which is that
    of the old pods for a moment while new ones start. Which generation it has observed it says only where something
    else is new.
    """
    cluster = snapshot.cluster
    if cluster is None:
        return False
    status = cluster.get("status", {})
    desired = status.get("desiredWorkerReplicas", 0)
    there = [pod for pod in snapshot.pods_of(names.WORKER) if not is_deleting(pod)]
    return (
        not is_deleting(cluster)
        and _head_is_up(snapshot)
        and len(there) == desired == snapshot.job.spec.cluster.nodes
        and status.get("readyWorkerReplicas", 0) == desired
        and all(map(is_up, there))
    )


def head_is_ready(snapshot: Snapshot) -> bool:
    """Whether its node finds it in order, which asks Ray and the agent from beside them."""
    return snapshot.cluster is not None and _holds(snapshot.cluster.get("status", {}), "HeadPodReady")


def _head_is_up(snapshot: Snapshot) -> bool:
    """Also where KubeRay has gone away itself since it said so."""
    return head_is_ready(snapshot) and not any(map(_is_over, snapshot.pods_of(names.HEAD)))


def counts_more(snapshot: Snapshot) -> bool:
    """Whether KubeRay has ready pods that we do not see."""
    cluster = snapshot.cluster
    if cluster is None or is_deleting(cluster):
        return False
    workers, heads = (len(snapshot.pods_of(role)) for role in (names.WORKER, names.HEAD))
    return cluster.get("status", {}).get("readyWorkerReplicas", 0) > workers or (not heads and head_is_ready(snapshot))


def was_provisioned(cluster: Manifest) -> bool:
    """Whether all pods that there were have been ready: the head alone, where a quota or a webhook refuses workers."""
    return _holds(cluster.get("status", {}), _PROVISIONED)


def had_attempt(snapshot: Snapshot) -> bool:
    """Whether the last attempt was made on this very RayCluster, all of whose pods were ready then."""
    driver = snapshot.job.status.driver
    return driver is not None and driver.cluster_uid == snapshot.cluster_uid


def lives(snapshot: Snapshot) -> bool:
    """Whether a driver may live on this RayCluster, as far as the status knows."""
    driver = snapshot.job.status.driver
    return driver is not None and driver.state != "Ended" and had_attempt(snapshot)


def had_workers(snapshot: Snapshot) -> bool:
    """Whether workers of this RayCluster have been ready too, as far as what is there can tell."""
    if snapshot.cluster is None or not was_provisioned(snapshot.cluster):
        return False
    return had_attempt(snapshot) or any(map(is_up, snapshot.pods_of(names.WORKER)))


def had_all_workers(snapshot: Snapshot) -> bool:
    """And whether KubeRay was let to make each of them."""
    made = len(snapshot.pods_of(names.WORKER)) >= snapshot.job.spec.cluster.nodes
    return had_workers(snapshot) and (made or had_attempt(snapshot))


def lost_head(snapshot: Snapshot) -> str | None:
    """How the head pod of a cluster that was up got lost; None where it is there.

    A pod that we do not see may be one that its watch has not told of: it is gone where KubeRay misses it too.
    """
    cluster = snapshot.cluster
    if cluster is None or not was_provisioned(cluster) or is_ready(snapshot):
        return None
    heads = [pod for pod in snapshot.pods_of(names.HEAD) if not is_deleting(pod)]
    if not heads:
        return None if _holds(cluster["status"], "HeadPodReady") else "its pod is gone"
    return _how_lost(snapshot, cluster, heads[0])


def head_leaves(snapshot: Snapshot) -> bool:
    """Whether somebody asked the head pod of a cluster that was up to end, and it still does. Not where it failed and
    is cleared away, nor where its node is lost.
    """
    cluster, heads = snapshot.cluster, snapshot.pods_of(names.HEAD)
    if cluster is None or is_deleting(cluster) or not was_provisioned(cluster):
        return False
    return bool(heads) and all(was_asked_to_end(pod) and _how_lost(snapshot, cluster, pod) is None for pod in heads)


def _how_lost(snapshot: Snapshot, cluster: Manifest, head: Manifest) -> str | None:
    """Where Ray knows the driver, its container was not restarted since."""
    if _is_over(head):
        return how_it_ended(head) or f"its pod has {head['status']['phase'].lower()}"
    if snapshot.head is not None and snapshot.head.driver is not None:
        return None
    since = _whole_at(snapshot, cluster)
    rays = [each for each in containers(head) if each["name"] == names.HEAD_CONTAINER]
    return "its container was restarted" if any(_restarted_since(since, each) for each in rays) else None


def _is_over(pod: Manifest) -> bool:
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def _whole_at(snapshot: Snapshot, cluster: Manifest) -> datetime | None:
    """When all its pods were ready: for the last attempt, which starts on no other cluster, or for the first time."""
    driver = snapshot.job.status.driver
    if driver is not None and had_attempt(snapshot) and driver.reserved is not None:
        return driver.reserved
    conditions = cluster["status"].get("conditions", ())
    since = next((each.get("lastTransitionTime") for each in conditions if each["type"] == _PROVISIONED), None)
    return datetime.fromisoformat(since) if since else None


def _restarted_since(when: datetime | None, container: Manifest) -> bool:
    """A container that failed before had nothing to lose, and its count stays for ever."""
    ended = container.get("lastState", {}).get("terminated", {}).get("finishedAt")
    if not container.get("restartCount", 0):
        return False
    return when is None or ended is None or datetime.fromisoformat(ended) > when


def invalid_pod(cluster: Manifest) -> tuple[str, str] | None:
    """The role of a pod that KubeRay cannot make, for the API server finds it invalid, and the words of that."""
    found = next(filter(None, map(_INVALID_POD.search, replica_failures(cluster))), None)
    return None if found is None else (found[1].lower(), found[2])


def replica_failures(maker: Manifest) -> Iterator[str]:
    """Why a RayCluster's or a Deployment's controller cannot make a pod, in its words."""
    for condition in maker.get("status", {}).get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            yield one_line(condition.get("message", condition["reason"]))


def waiting_for(snapshot: Snapshot) -> str:
    """What a cluster that is not ready waits for, for people."""
    cluster, wanted = cluster_status(snapshot), snapshot.job.spec.cluster.nodes
    up = [pod for pod in snapshot.pods_of(names.WORKER) if is_up(pod) and not is_deleting(pod)]
    there = min(cluster.ready_workers, len(up)) if cluster else 0
    ready = f"{there} of {wanted} workers ready"
    if there == wanted and not _head_is_up(snapshot):
        ready += ", but not the head"
    elif _holds((snapshot.cluster or {}).get("status", {}), "HeadPodReady", "False"):  # at first KubeRay says nothing
        ready += ", and the head is not"
    reasons = list(dict.fromkeys(_reasons(snapshot)))
    return f"{ready}; {'; '.join(reasons[:3])}" if reasons else ready


def claim_held(snapshot: Snapshot) -> str | None:
    """That somebody deletes the job's claim while a pod uses it: no other pod gets it meanwhile, nor another claim its
    name, so a cluster that lacks a pod waits for ever. What is in it is there as long as that pod.

    Reward models' pods use it where spec.volumeMounts names it.
    """
    name = names.claim(snapshot.job.name)
    claim = snapshot.child(VOLUME_CLAIM, name)
    servers = (pod for pod in snapshot.pods if role_of(pod) == names.REWARD_MODEL and _mounts(pod, name))
    pods = [*snapshot.ray_pods, *servers]
    users = [pod["metadata"]["name"] for pod in pods if is_up(pod) and not is_deleting(pod)]
    if claim is None or not is_deleting(claim) or not users or not any(map(unscheduled, pods)):
        return None
    return (
        f"{name} is being deleted, so no new pod gets it, and {users[0]} still has it: copy from there what you need,"
        " then suspend and resume the job, which begins anew"
    )


def _mounts(pod: Manifest, claim: str) -> bool:
    volumes = pod.get("spec", {}).get("volumes", ())
    return any(each.get("persistentVolumeClaim", {}).get("claimName") == claim for each in volumes)


def pods_left(snapshot: Snapshot) -> str:
    """How many pods have not ended, and what keeps those that no waiting ends; or what is there without pods."""
    if not snapshot.pods:
        return "the RayCluster" if snapshot.cluster is not None else "the reward models"
    lost = [f"{pod['metadata']['name']} on node {pod['spec'].get('nodeName')}" for pod in lost_pods(snapshot)]
    remedy = "lost with its node: bring that back, delete it, or set spec.recovery.forceDeleteLostPods"
    count = len(snapshot.pods)
    return f"{count} pod{'s' if count > 1 else ''}" + (f" ({', '.join(lost[:3])}: {remedy})" if lost else "")


def lost_labels(snapshot: Snapshot) -> Iterator[str]:
    """Of pods, which we may not put back."""
    pods = [each["metadata"]["name"] for each in snapshot.strays if each["kind"] == POD.name]
    if pods:
        named = f"{', '.join(pods[:3])}{' and others' if len(pods) > 3 else ''}"
        lost = f"somebody took the label {names.JOB_LABEL} off {named}"
        yield f"{lost}, which no NetworkPolicy guards any more: delete them, and they are replaced"


def _reasons(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.cluster is not None and not snapshot.cluster.get("status"):
        name = snapshot.cluster["metadata"]["name"]
        yield f"KubeRay has said nothing of RayCluster {name} yet: see that one's events, and whether KubeRay runs"
    yield from _meddled(snapshot)
    yield from lost_labels(snapshot)
    yield from troubles(snapshot.ray_pods)
    yield from (f"KubeRay: {words}" for words in replica_failures(snapshot.cluster or {}))


def _meddled(snapshot: Snapshot) -> Iterator[str]:
    """What somebody changed of the RayCluster, whose spec is written once: a change could cost pods that train."""
    if snapshot.cluster is None:
        return
    name, spec = snapshot.cluster["metadata"]["name"], snapshot.cluster.get("spec", {})
    if spec.get("suspend"):
        yield f"somebody set spec.suspend of RayCluster {name}, so KubeRay makes no pods: set it to false there"
    groups, wanted = spec.get("workerGroupSpecs", ()), snapshot.job.spec.cluster.nodes
    asked = sum(each.get("replicas", 0) for each in groups)
    if groups and asked != wanted:
        yield f"somebody set the worker replicas of RayCluster {name} to {asked}: set them to {wanted} there"


def _holds(status: Manifest, kind: str, says: str = "True") -> bool:
    return any(each["type"] == kind and each["status"] == says for each in status.get("conditions", ()))
