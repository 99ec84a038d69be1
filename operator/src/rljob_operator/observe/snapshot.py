"""A Snapshot: what the API server and the head reported about one job at one moment, not yet interpreted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rljob_operator import names
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job
from rljob_operator.kube.kinds import POD_GROUPS, RAY_CLUSTER, RESOURCE_FLAVOR, WORKLOAD, Key, Kind, Manifest, Ref


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at `now`.

    children: by kind and name.
    pods: of head, workers and reward models.
    head: None if there is no head pod that answers.
    status_written: when this process last wrote the status; None if it has not.
    silent: seconds without a sign of life of the driver, for whatever reason.
    unauthorized: a server answered and refused the operator's token.
    cluster_wide: objects without a namespace, by kind and key.
    missing: OPTIONAL kinds that the operator cannot list in the job's namespace.
    preemptor: whom Kueue names in the Workload; None if it names none, or the operator does not know it.
    """

    job: Job
    now: datetime
    children: Mapping[Kind, Mapping[str, Manifest]] = field(default_factory=dict)
    pods: Sequence[Manifest] = ()
    head: HeadReport | None = None
    status_written: datetime | None = None
    silent: float = 0.0
    unauthorized: bool = False
    cluster_wide: Mapping[Kind, Mapping[Key, Manifest]] = field(default_factory=dict)
    missing: frozenset[Kind] = frozenset()
    preemptor: Ref | None = None

    def child(self, kind: Kind, name: str) -> Manifest | None:
        return self.children.get(kind, {}).get(name)

    @property
    def cluster(self) -> Manifest | None:
        return self.child(RAY_CLUSTER, names.ray_cluster(self.job.name))

    @property
    def workload(self) -> Manifest | None:
        return self.child(WORKLOAD, self.job.workload)

    @property
    def pod_groups(self) -> list[Manifest]:
        """Of every gang scheduler that the job has had."""
        return [each for kind in POD_GROUPS.values() for each in self.children.get(kind, {}).values()]

    @property
    def flavors(self) -> Mapping[Key, Manifest]:
        """Kueue's ResourceFlavors."""
        return self.cluster_wide.get(RESOURCE_FLAVOR, {})

    @property
    def cluster_uid(self) -> str | None:
        return None if self.cluster is None else self.cluster["metadata"]["uid"]

    @property
    def ray_pods(self) -> list[Manifest]:
        """Pods of head and workers."""
        return [pod for pod in self.pods if role_of(pod) != names.REWARD_MODEL]

    def pods_of(self, role: str) -> list[Manifest]:
        return [pod for pod in self.pods if role_of(pod) == role]

    def servers_of(self, model: str) -> list[Manifest]:
        """The pods of a reward model."""
        return [pod for pod in self.pods if label(pod, names.REWARD_MODEL_LABEL) == model]


def role_of(pod: Manifest) -> str | None:
    """names.HEAD, WORKER or REWARD_MODEL; None for a pod that the operator did not cause."""
    return label(pod, names.ROLE_LABEL)


def label(manifest: Manifest, name: str) -> str | None:
    value: str | None = manifest["metadata"].get("labels", {}).get(name)
    return value


def annotation(manifest: Manifest | None, name: str) -> str | None:
    value: str | None = (manifest or {}).get("metadata", {}).get("annotations", {}).get(name)
    return value


def made_at(manifest: Manifest) -> datetime:
    """Creation time, in whole seconds."""
    return datetime.fromisoformat(manifest["metadata"]["creationTimestamp"])


def controller_of(manifest: Manifest) -> str | None:
    """The uid of the owner that created it."""
    owners = manifest["metadata"].get("ownerReferences", ())
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), None)


def is_deleting(manifest: Manifest) -> bool:
    return manifest["metadata"].get("deletionTimestamp") is not None


def condition_of(manifest: Manifest, kind: str) -> Manifest:
    """Empty if there is none."""
    conditions = manifest.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})


def condition_is(manifest: Manifest, kind: str, status: str = "True") -> bool:
    return condition_of(manifest, kind).get("status") == status
