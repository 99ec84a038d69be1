"""Pods on their way out: evicted, drained or lost with their nodes."""

from datetime import datetime

from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.snapshot import Snapshot, is_deleting

SOON_SECONDS = 1
"""Grace period of a pod that has nothing to save. With 0, its node would not confirm that it ended."""

_BY_TAINT = "DeletionByTaintManager"


def lost_pods(snapshot: Snapshot) -> list[Manifest]:
    """Pods that Kubernetes evicted from a lost node and that did not end in their time."""
    return [pod for pod in snapshot.pods if is_deleting(pod) and _was_evicted(pod) and _end(pod) < snapshot.now]


def until_lost(snapshot: Snapshot) -> float | None:
    """Seconds until the next evicted pod counts as lost, which no watch reports. None if there is none."""
    ends = [_end(pod) for pod in snapshot.pods if is_deleting(pod) and _was_evicted(pod)]
    left = [(end - snapshot.now).total_seconds() for end in ends if end >= snapshot.now]
    return min(left) + 1.0 if left else None


def spent_pods(snapshot: Snapshot, *, cluster_goes: bool) -> list[Manifest]:
    """Pods of a RayCluster that is being replaced after a failure. Their driver has ended, so they have nothing to
    save, and a worker without its head would take half a minute to end.

    cluster_goes: whether this plan deletes the RayCluster.
    """
    if snapshot.job.status.recovery.action != "rebuild_cluster":
        return []
    leaving = [pod for pod in snapshot.ray_pods if cluster_goes or is_deleting(pod)]
    return [pod for pod in leaving if _has_time(pod) and not _was_evicted(pod)]


def _has_time(pod: Manifest) -> bool:
    """Whether its grace period is longer than a spent pod needs; so is that of a pod that is not being deleted."""
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    return given is None or given > SOON_SECONDS


def was_asked_to_end(pod: Manifest) -> bool:
    """True for a drain or a user's delete; false for taint eviction or force delete."""
    in_no_time = pod["metadata"].get("deletionGracePeriodSeconds") == 0
    return is_deleting(pod) and not in_no_time and not _was_evicted(pod)


def _was_evicted(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "DisruptionTarget" and each.get("reason") == _BY_TAINT for each in conditions)


def _end(pod: Manifest) -> datetime:
    """When the pod should have ended."""
    return datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
