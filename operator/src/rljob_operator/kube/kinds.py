"""The kinds that the operator uses, and how a single object is named."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

Manifest = dict[str, Any]
"""An object of the API server as JSON."""


@dataclass(frozen=True)
class Kind:
    """A row of the table below. plural: the resource's name in paths, lower case."""

    api_version: str
    name: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of one object, or of a list: of one namespace, or of all without a namespace."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        inside = f"/namespaces/{namespace}" if namespace else ""
        return root + inside + "/" + "/".join(part for part in (self.plural, name, subresource) if part)

    @property
    def resource(self) -> str:
        """For example deployments.apps."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural

    def manifest(self, metadata: Manifest, **fields: Any) -> Manifest:
        """An object of this kind."""
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": metadata, **fields}

    def __str__(self) -> str:
        return self.name


RLJOB = Kind("rljob.dev/v1alpha1", "RLJob", "rljobs")
RAY_CLUSTER = Kind("ray.io/v1", "RayCluster", "rayclusters")
POD = Kind("v1", "Pod", "pods")
SERVICE = Kind("v1", "Service", "services")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
VOLUME_CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
EVENT = Kind("events.k8s.io/v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
WORKLOAD = Kind("kueue.x-k8s.io/v1beta2", "Workload", "workloads")
RESOURCE_FLAVOR = Kind("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "resourceflavors")
WORKLOAD_PRIORITY_CLASS = Kind("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses")

POD_GROUPS = {
    "volcano": Kind("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups"),
    "coscheduling": Kind("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups"),
    "native": Kind("scheduling.k8s.io/v1alpha2", "PodGroup", "podgroups"),
}
"""By spec.gang.scheduler."""

CHILD_KINDS = (
    RAY_CLUSTER, DEPLOYMENT, SERVICE, CONFIG_MAP, VOLUME_CLAIM, NETWORK_POLICY, DISRUPTION_BUDGET, WORKLOAD,
    *POD_GROUPS.values(),
)  # fmt: skip
"""Kinds of what is made for a job, without pods and Secrets."""

CLUSTER_WIDE = (RESOURCE_FLAVOR, WORKLOAD_PRIORITY_CLASS)
"""Kinds without a namespace, whose objects belong to no job."""

OF_KUEUE = (WORKLOAD, *CLUSTER_WIDE)
"""Kinds that a cluster without Kueue lacks."""

OPTIONAL = (*OF_KUEUE, *POD_GROUPS.values())
"""Kinds without which the operator works."""

WATCHED = (RLJOB, *CHILD_KINDS, POD, *CLUSTER_WIDE)
"""Kinds that a decision rests on."""

KINDS = {
    (kind.api_version, kind.name): kind
    for kind in (
        RLJOB, RAY_CLUSTER, POD, SERVICE, CONFIG_MAP, SECRET, VOLUME_CLAIM, DEPLOYMENT, NETWORK_POLICY,
        DISRUPTION_BUDGET, EVENT, LEASE, WORKLOAD, RESOURCE_FLAVOR, WORKLOAD_PRIORITY_CLASS,
        *POD_GROUPS.values(),
    )
}  # fmt: skip


class Key(NamedTuple):
    """Namespace and name of an object. The namespace of a cluster-wide one is empty."""

    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        metadata = manifest["metadata"]
        return cls(metadata.get("namespace", ""), metadata["name"])

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Ref:
    """One object. uid: empty for the present object of that name."""

    kind: Kind
    namespace: str
    name: str
    uid: str = ""

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        kind = KINDS[manifest["apiVersion"], manifest["kind"]]
        return cls(kind, *Key.of(manifest), manifest["metadata"].get("uid", ""))

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    def path(self, subresource: str | None = None) -> str:
        return self.kind.path(self.namespace, self.name, subresource)

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"
