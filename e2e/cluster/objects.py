"""What a new cluster holds: CRDs, a class of volumes and fake nodes."""

import json
import time
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.errors import ClusterError

RLJOB = Path(__file__).parents[2] / "crds/rljobs.rljob.dev.yaml"

SERVED_SECONDS = 120.0

NODE_SIZE = {"cpu": "128", "memory": "1Ti", "pods": "256", "ephemeral-storage": "1Ti"}


def install_rljob(access: Access) -> None:
    apply(access, RLJOB)
    wait_until_served(access, "rljob.dev/v1alpha1", {"RLJob"})


def install_kuberay(access: Access) -> None:
    """The CRDs that its operator watches, unless they are there.

    Those of RayJob and RayService come without their schemas, which cost the API server seconds: RLJob makes none.
    """
    kinds = {"RayCluster", "RayJob", "RayService"}
    if _served(access, "ray.io/v1") >= kinds:
        return
    ray_cluster = BINARIES["kuberay-operator"].share("config/crd/bases") / "ray.io_rayclusters.yaml"
    apply(access, ray_cluster)
    others = [_crd_without_schema("ray.io", kind) for kind in ("RayJob", "RayService")]
    access.kubectl("apply", "--filename=-", objects=yaml.safe_dump_all(others))
    wait_until_served(access, "ray.io/v1", kinds)


def install_nodes(access: Access, count: int, gpus: int) -> None:
    """Fake nodes, and a default StorageClass for KWOK's volumes; wait until KWOK has made the nodes Ready.

    Not by server-side apply: a node's status, with its size, is taken only where the node is created.
    """
    nodes = [_node(number, gpus) for number in range(count)]
    volumes = BINARIES["kwok"].share("kustomize/stage/volume/fast/storage-class.yaml")
    access.kubectl("apply", f"--filename={volumes}", "--filename=-", objects=yaml.safe_dump_all(nodes))
    access.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "node", "--selector=type=kwok")


def apply(access: Access, *files: Path) -> None:
    """Server-side, since KubeRay's CRDs are too long for the annotation that kubectl otherwise writes."""
    names = [f"--filename={file}" for file in files]
    access.kubectl("apply", "--server-side", "--force-conflicts", *names)


def _served(access: Access, version: str) -> set[str]:
    """The kinds of a group's version."""
    try:
        listed = json.loads(access.kubectl("get", "--raw", f"/apis/{version}"))
    except ClusterError:  # no such group yet
        return set()
    return {resource["kind"] for resource in listed["resources"]}


def wait_until_served(access: Access, version: str, kinds: set[str]) -> None:
    """Not by `kubectl wait`, which fails on a CRD so new that it has no conditions."""
    deadline = time.monotonic() + SERVED_SECONDS
    while missing := kinds - _served(access, version):
        if time.monotonic() > deadline:
            raise ClusterError(f"the API server does not serve {', '.join(missing)} after {SERVED_SECONDS:.0f} s")
        time.sleep(0.1)


def _crd_without_schema(group: str, kind: str) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _node(number: int, gpus: int) -> dict[str, Any]:
    name = f"fake-{number}"
    size = NODE_SIZE | {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "status": {"allocatable": size, "capacity": size, "phase": "Running"},
    }
