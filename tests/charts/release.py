"""One release of the chart in a cluster, with a namespace of its own and one for jobs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import new_namespace
from e2e.cluster.helm import Helm
from tests.charts.chart import CHART

FORCED = ("--take-ownership", "--force-conflicts")
"""The cluster has the CRD already, and not from Helm."""

INSTANCE = "app.kubernetes.io/instance"

KINDS = (
    "all", "clusterrolebindings", "clusterroles", "configmaps", "networkpolicies", "poddisruptionbudgets",
    "rolebindings", "roles", "serviceaccounts", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
)  # fmt: skip


@dataclass(frozen=True)
class Release:
    """name: also that of its namespace. jobs: the namespace that it looks after."""

    helm: Helm
    name: str
    jobs: str

    @property
    def full_name(self) -> str:
        """Of its objects."""
        return f"{self.name}-rljob-operator"

    def install(self, chart: str = str(CHART), **values: Any) -> None:
        """Or upgrade it, and wait until its pods are ready."""
        options = ("--install", f"--namespace={self.name}", "--values=-", "--wait", "--timeout=2m", *FORCED)
        text = yaml.safe_dump({"namespaces": [self.jobs], **values})
        self.helm("upgrade", self.name, chart, *options, values=text)

    def uninstall(self) -> None:
        self.helm("uninstall", self.name, f"--namespace={self.name}", "--wait", "--timeout=2m")

    def kubectl(self, *arguments: str, objects: str = "") -> str:
        """In its namespace."""
        assert self.helm.access is not None
        return self.helm.access.kubectl(f"--namespace={self.name}", *arguments, objects=objects).strip()

    def as_operator(self, kubeconfig: Path) -> Access:
        """The cluster, with the operator's rights. kubeconfig: written."""
        assert self.helm.access is not None
        return self.helm.access.as_service_account(self.name, self.full_name, kubeconfig)

    def children(self, job: str) -> list[str]:
        """What the operator has made for the job and may read, and the pods."""
        kinds = "rayclusters,pods,configmaps,networkpolicies,poddisruptionbudgets,persistentvolumeclaims"
        selected = f"--selector=rljob.dev/job={job}"
        return self.kubectl("get", kinds, selected, f"--namespace={self.jobs}", "--output=name").splitlines()

    def manifests(self) -> list[dict[str, Any]]:
        """As they were sent to the API server."""
        text = self.helm("get", "manifest", self.name, f"--namespace={self.name}")
        return list(yaml.load_all(text, yaml.CSafeLoader))

    def objects(self) -> list[str]:
        """All that bear its label, in any namespace."""
        kinds = ",".join(KINDS)
        found = self.kubectl("get", kinds, f"--selector={INSTANCE}={self.name}", "--all-namespaces", "--output=name")
        return found.splitlines()


@contextmanager
def installed(helm: Helm, cluster: Access) -> Iterator[Release]:
    """Under restricted Pod Security; uninstalled afterwards."""
    with cluster.client() as client, new_namespace(client) as name, new_namespace(client) as jobs:
        release = Release(replace(helm, access=cluster), name, jobs)
        release.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        try:
            release.install()
            yield release
        finally:
            with suppress(ClusterError):  # a test has done it
                release.uninstall()
