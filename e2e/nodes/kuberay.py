"""KubeRay's operator in a pod: its own manifests, with the image that was built here."""

from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.nodes.addons import SOON_ELSEWHERE
from e2e.nodes.images import KUBERAY

NAMESPACE = "rljob-system"
"""Of RLJob's operator too: both hold to restricted Pod Security."""

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
"""Labels of a namespace: a pod there that may do more than it needs is refused."""

CONTAINER = "kuberay-operator"

PODS = (f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/component=kuberay-operator")
"""kubectl's arguments that choose its own."""

MANIFESTS = ("config/rbac", "config/manager")

_NAMESPACED = ("ServiceAccount", "Role", "RoleBinding", "Service", "Deployment")


def install(access: Access) -> None:
    """Without waiting for its pod."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    folders = (BINARIES["kuberay-operator"].share(each) for each in MANIFESTS)
    objects = [_adapted(each) for folder in folders for each in _rendered(access, folder)]
    documents = yaml.safe_dump_all([namespace, *objects])
    access.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", objects=documents)


def _rendered(access: Access, folder: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(access.kubectl("kustomize", str(folder))))


def _adapted(manifest: dict[str, Any]) -> dict[str, Any]:
    if manifest["kind"] in _NAMESPACED:
        manifest["metadata"]["namespace"] = NAMESPACE
    for subject in manifest.get("subjects", ()):
        subject["namespace"] = NAMESPACE
    if manifest["kind"] == "Deployment":
        pod = manifest["spec"]["template"]["spec"]
        pod["tolerations"] = SOON_ELSEWHERE
        (container,) = pod["containers"]
        container["image"] = KUBERAY
        container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 1}
        del container["resources"]["limits"]["cpu"]  # a tenth of a processor, which throttles it as it starts
    return manifest
