"""Everything that a decision rests on, as it was at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rljob_operator import names
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job
from rljob_operator.kube.kinds import RAY_CLUSTER, Kind, Manifest

SOON_SECONDS = 1
"""For a pod that has nothing to save. With 0 nobody would wait until its node says that it has ended."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at `now`.

    children: by kind and name. pods: of head, workers and reward models.
    strays: those of both that have lost our label, so that no watch tells of them.
    head: None where there is no head pod that answers. told: when the status was written last; None where that was
    another process, or nobody. silent, unauthorized: as Heard has them.
    """

    job: Job
    now: datetime
    children: Mapping[Kind, Mapping[str, Manifest]] = field(default_factory=dict)
    pods: Sequence[Manifest] = ()
    head: HeadReport | None = None
    told: datetime | None = None
    silent: float = 0.0
    unauthorized: bool = False
    strays: Sequence[Manifest] = ()

    def child(self, kind: Kind, name: str) -> Manifest | None:
        return self.children.get(kind, {}).get(name)

    @property
    def cluster(self) -> Manifest | None:
        return self.child(RAY_CLUSTER, names.ray_cluster(self.job.name))

    @property
    def cluster_uid(self) -> str | None:
        return None if self.cluster is None else self.cluster["metadata"]["uid"]

    @property
    def ray_pods(self) -> list[Manifest]:
        """Of head and workers."""
        return [pod for pod in self.pods if role_of(pod) != names.REWARD_MODEL]

    def pods_of(self, role: str) -> list[Manifest]:
        return [pod for pod in self.pods if role_of(pod) == role]

    def servers_of(self, model: str) -> list[Manifest]:
        """The pods of a reward model."""
        return [pod for pod in self.pods if _label(pod, names.REWARD_MODEL_LABEL) == model]


def role_of(pod: Manifest) -> str | None:
    """names.HEAD, WORKER or REWARD_MODEL; None of a pod that is not the operator's."""
    return _label(pod, names.ROLE_LABEL)


def _label(manifest: Manifest, label: str) -> str | None:
    value: str | None = manifest["metadata"].get("labels", {}).get(label)
    return value


def orphaned_pods(snapshot: Snapshot) -> list[Manifest]:
    """KubeRay's, whose RayCluster was deleted without them (kubectl delete --cascade=orphan): nobody else ends them."""
    name = names.ray_cluster(snapshot.job.name)
    made = [pod for pod in snapshot.ray_pods if _label(pod, names.RAY_CLUSTER_LABEL) == name]
    return [pod for pod in made if controller_of(pod) is None and not is_deleting(pod)]


def lost_pods(snapshot: Snapshot) -> list[Manifest]:
    """Those that Kubernetes has given up with their nodes: evicted, and their time to end has passed unheard."""
    return [pod for pod in snapshot.pods if is_deleting(pod) and _was_evicted(pod) and _end(pod) < snapshot.now]


def until_lost(snapshot: Snapshot) -> float | None:
    """Seconds until the next pod of a lost node counts as lost, of which no watch tells. None: there is no next."""
    ends = [_end(pod) for pod in snapshot.pods if is_deleting(pod) and _was_evicted(pod)]
    left = [(end - snapshot.now).total_seconds() for end in ends if end >= snapshot.now]
    return min(left) + 1.0 if left else None


def spent_pods(snapshot: Snapshot, *, going: bool) -> list[Manifest]:
    """Of a RayCluster that another one replaces: its driver has ended, so they have nothing to save, and a worker that
    has lost its head would take half a minute to end.

    going: the RayCluster is being deleted now.
    """
    if snapshot.job.status.recovery.action != "rebuild_cluster":
        return []
    return [
        pod for pod in snapshot.ray_pods if (going or is_deleting(pod)) and _has_time(pod) and not _was_evicted(pod)
    ]


def _has_time(pod: Manifest) -> bool:
    """More than a spent one needs, as those have that nobody has asked to end yet."""
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    return given is None or given > SOON_SECONDS


def was_asked_to_end(pod: Manifest) -> bool:
    """By somebody who means it, as a drain: Kubernetes deletes pods of a lost node too, where nobody hears of it, as
    nobody does where it is deleted by force, without time to end in.
    """
    in_no_time = pod["metadata"].get("deletionGracePeriodSeconds") == 0
    return is_deleting(pod) and not in_no_time and not _was_evicted(pod)


def _was_evicted(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "DisruptionTarget" and each.get("reason") == _BY_TAINT for each in conditions)


def _end(pod: Manifest) -> datetime:
    """By then it should have ended."""
    return datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])


_BY_TAINT = "DeletionByTaintManager"


def made_at(manifest: Manifest) -> datetime:
    """In whole seconds."""
    return datetime.fromisoformat(manifest["metadata"]["creationTimestamp"])


def controller_of(manifest: Manifest) -> str | None:
    """The uid of the owner that made it."""
    owners = manifest["metadata"].get("ownerReferences", ())
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def is_deleting(manifest: Manifest) -> bool:
    return manifest["metadata"].get("deletionTimestamp") is not None
