"""The state of the RayCluster, derived once from its manifest and its pods."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from rljob_api.v1alpha1 import ClusterStatus
from rljob_operator import names
from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.leaving import was_asked_to_end
from rljob_operator.observe.nodes import excluded
from rljob_operator.observe.pods import (
    containers,
    how_it_ended,
    is_over,
    is_up,
    replica_failures,
    troubles,
    unscheduled,
)
from rljob_operator.observe.snapshot import Snapshot, condition_is, is_deleting

_PROVISIONED = "RayClusterProvisioned"
HEAD_READY = "HeadPodReady"
_INVALID_POD = re.compile(r'FailedCreate(Head|Worker)Pod:? (Pod "[^"]*" is invalid: .*)')
"""KubeRay's message. A pod that is forbidden does not match: quotas and webhooks change."""


class ClusterState(Enum):
    ABSENT = auto()  # neither a RayCluster nor pods of one
    ENDING = auto()  # its pods are still there
    DELETING = auto()
    INCOMPLETE = auto()  # not all pods are ready
    READY = auto()


@dataclass(frozen=True, slots=True)
class InvalidPod:
    """A pod that the API server refuses to KubeRay. role: names.HEAD or WORKER. why: the API server's message."""

    role: str
    why: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """status: None if there is no RayCluster.

    of_attempt: the last attempt was made on this very RayCluster, all of whose pods were ready then.
    head_ready: the head pod's node finds it ready, which probes Ray and the agent from beside them.
    head_leaves: the head pod of a cluster that was up was asked to end, and has not ended.
    head_lost: how a cluster that was up lost its head; None if it has not.
    had_workers: workers of this RayCluster have been ready, as far as the snapshot shows.
    had_all_workers: and KubeRay was allowed to create each of them.
    waits_for: what it waits for, for people; empty if it is ready.
    """

    state: ClusterState
    status: ClusterStatus | None = None
    of_attempt: bool = False
    head_ready: bool = False
    head_leaves: bool = False
    head_lost: str | None = None
    had_workers: bool = False
    had_all_workers: bool = False
    invalid_pod: InvalidPod | None = None
    waits_for: str = ""

    @property
    def exists(self) -> bool:
        return self.status is not None

    @property
    def is_ready(self) -> bool:
        return self.state is ClusterState.READY


def derive_cluster(snapshot: Snapshot) -> Cluster:
    found = snapshot.cluster
    if found is None:
        state = ClusterState.ENDING if snapshot.ray_pods else ClusterState.ABSENT
        return Cluster(state, waits_for=_waits_for(snapshot))
    state = _state(snapshot, found)
    lost = None if state is ClusterState.READY else _head_lost(snapshot, found)
    had_workers = _had_workers(snapshot, found)
    made = len(snapshot.pods_of(names.WORKER)) >= _wanted(snapshot)
    return Cluster(
        state,
        status=_status(snapshot, found),
        of_attempt=_is_of_attempt(snapshot),
        head_ready=condition_is(found, HEAD_READY),
        head_leaves=_head_leaves(snapshot, found),
        head_lost=lost,
        had_workers=had_workers,
        had_all_workers=had_workers and (made or _is_of_attempt(snapshot)),
        invalid_pod=_invalid_pod(found),
        waits_for="" if state is ClusterState.READY else _waits_for(snapshot),
    )


def _state(snapshot: Snapshot, cluster: Manifest) -> ClusterState:
    """RayClusterProvisioned alone is not enough: it stays true after a pod is lost. Neither is KubeRay's count, which
    is that of the old pods for a moment while new ones start.
    """
    if is_deleting(cluster):
        return ClusterState.DELETING
    desired = cluster.get("status", {}).get("desiredWorkerReplicas", 0)
    workers = [pod for pod in snapshot.pods_of(names.WORKER) if not is_deleting(pod)]
    ready = (
        _head_is_up(snapshot, cluster)
        and len(workers) == desired == _wanted(snapshot)
        and cluster.get("status", {}).get("readyWorkerReplicas", 0) == desired
        and all(map(is_up, workers))
    )
    return ClusterState.READY if ready else ClusterState.INCOMPLETE


def _wanted(snapshot: Snapshot) -> int:
    """Workers that the spec asks for; KubeRay's own number if the spec cannot be read."""
    if snapshot.job.read is not None:
        return snapshot.job.read.cluster.nodes
    number: int = (snapshot.cluster or {}).get("status", {}).get("desiredWorkerReplicas", 0)
    return number


def _status(snapshot: Snapshot, cluster: Manifest) -> ClusterStatus:
    return ClusterStatus(
        name=cluster["metadata"]["name"],
        uid=cluster["metadata"]["uid"],
        ready_workers=cluster.get("status", {}).get("readyWorkerReplicas", 0),
        desired_workers=_wanted(snapshot),
    )


def _is_of_attempt(snapshot: Snapshot) -> bool:
    driver = snapshot.job.status.driver
    return driver is not None and driver.cluster_uid == snapshot.cluster_uid


def _head_is_up(snapshot: Snapshot, cluster: Manifest) -> bool:
    """KubeRay's condition may be outdated if KubeRay itself stopped since."""
    return condition_is(cluster, HEAD_READY) and not any(map(is_over, snapshot.pods_of(names.HEAD)))


def _had_workers(snapshot: Snapshot, cluster: Manifest) -> bool:
    """If a quota or a webhook refuses workers, KubeRay calls a cluster of its head alone provisioned."""
    if not condition_is(cluster, _PROVISIONED):
        return False
    return _is_of_attempt(snapshot) or any(map(is_up, snapshot.pods_of(names.WORKER)))


def _head_lost(snapshot: Snapshot, cluster: Manifest) -> str | None:
    """A pod that is missing from the snapshot is lost only if KubeRay misses it too: its watch may be late."""
    if not condition_is(cluster, _PROVISIONED):
        return None
    heads = [pod for pod in snapshot.pods_of(names.HEAD) if not is_deleting(pod)]
    if not heads:
        return None if condition_is(cluster, HEAD_READY) else "its pod is gone"
    return _how_lost(snapshot, cluster, heads[0])


def _head_leaves(snapshot: Snapshot, cluster: Manifest) -> bool:
    """False for a head that failed and is cleared away, and for one whose node is lost."""
    heads = snapshot.pods_of(names.HEAD)
    if is_deleting(cluster) or not condition_is(cluster, _PROVISIONED):
        return False
    return bool(heads) and all(was_asked_to_end(pod) and _how_lost(snapshot, cluster, pod) is None for pod in heads)


def _how_lost(snapshot: Snapshot, cluster: Manifest, head: Manifest) -> str | None:
    """As long as Ray knows the driver, its container was not restarted since."""
    if is_over(head):
        return how_it_ended(head) or f"its pod has {head['status']['phase'].lower()}"
    if snapshot.head is not None and snapshot.head.driver is not None:
        return None
    since = _complete_since(snapshot, cluster)
    rays = [each for each in containers(head) if each["name"] == names.HEAD_CONTAINER]
    return "its container was restarted" if any(_restarted_since(since, each) for each in rays) else None


def _complete_since(snapshot: Snapshot, cluster: Manifest) -> datetime | None:
    """When all its pods were ready: at the last attempt if it was made here, else for the first time."""
    driver = snapshot.job.status.driver
    if driver is not None and _is_of_attempt(snapshot) and driver.reserved is not None:
        return driver.reserved
    conditions = cluster["status"].get("conditions", ())
    since = next((each.get("lastTransitionTime") for each in conditions if each["type"] == _PROVISIONED), None)
    return datetime.fromisoformat(since) if since else None


def _restarted_since(when: datetime | None, container: Manifest) -> bool:
    """A container that failed earlier had nothing to lose, and its restart count stays."""
    ended = container.get("lastState", {}).get("terminated", {}).get("finishedAt")
    if not container.get("restartCount", 0):
        return False
    return when is None or ended is None or datetime.fromisoformat(ended) > when


def _invalid_pod(cluster: Manifest) -> InvalidPod | None:
    found = next(filter(None, map(_INVALID_POD.search, replica_failures(cluster))), None)
    return None if found is None else InvalidPod(found[1].lower(), found[2])


def _waits_for(snapshot: Snapshot) -> str:
    """Ready workers, then up to three reasons, and the nodes that a worker without a node avoids."""
    cluster, wanted = snapshot.cluster or {}, _wanted(snapshot)
    up = [pod for pod in snapshot.pods_of(names.WORKER) if is_up(pod) and not is_deleting(pod)]
    there = min(cluster.get("status", {}).get("readyWorkerReplicas", 0), len(up))
    ready = f"{there} of {wanted} workers ready"
    head_is_up = bool(cluster) and _head_is_up(snapshot, cluster)
    if (there == wanted and not head_is_up) or condition_is(cluster, HEAD_READY, "False"):
        ready += ", head not ready"
    reasons = list(dict.fromkeys(_reasons(snapshot)))[:3]
    if any(map(unscheduled, snapshot.pods_of(names.WORKER))) and (avoided := excluded(snapshot.job)):
        reasons.append(avoided)
    return "; ".join([ready, *reasons])


def _reasons(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.cluster is not None and not snapshot.cluster.get("status"):
        name = snapshot.cluster["metadata"]["name"]
        yield f"KubeRay has not reported on RayCluster {name}; check its events and that KubeRay runs"
    yield from troubles(snapshot.ray_pods)
    yield from (f"KubeRay: {words}" for words in replica_failures(snapshot.cluster or {}))
