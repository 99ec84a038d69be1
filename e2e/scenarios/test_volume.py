"""The checkpoint volume is full: the job says so, and goes on where it was once there is room."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.access import Access
from e2e.cluster.layout import Layout
from e2e.nodes.machine import Machine
from e2e.scenarios.job import Job

pytestmark = pytest.mark.timeout(1800)

CLAIM = "small"

SIZE, ENOUGH = "8m", "500m"
"""Of a file system in memory: room for one checkpoint and not for a second; and for all."""


@pytest.fixture
def node(layout: Layout, cluster: Access, job: Job) -> Iterator[Machine]:
    """Has the folder `/run/NAMESPACE`, on a file system of its own, which the job's claim stands for."""
    node, folder = Machine(layout.folder, 0), f"/run/{job.namespace}"
    node.run("mkdir", folder)
    node.run("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0777", "tmpfs", folder)
    claim = _claim()
    cluster.kubectl("apply", "--filename=-", objects=json.dumps(_volume(job.namespace, folder, node.name)))
    job.kubectl("apply", "--filename=-", objects=json.dumps(claim))
    yield node
    job.kubectl("delete", "rljob", job.name, "--ignore-not-found")
    job.kubectl("delete", "pvc", CLAIM)
    cluster.kubectl("delete", "pv", job.namespace)
    node.run("umount", folder)


@pytest.mark.usefixtures("node")
def test_a_full_volume_ends_the_job_and_names_the_way_out(job: Job) -> None:
    job.apply(checkpoint={"volume": _existing()})
    status = job.reaches("Failed")
    failed = job.conditions["Failed"]
    assert (failed["reason"], status["restarts"]) == ("StorageFull", 0)
    assert "free space" in failed["message"]
    assert status["checkpoint"]["step"] > 0, "the first one had room"
    job.eventually(lambda: not job.pods(), "end of the pods", 120)


def test_a_job_that_may_restart_goes_on_once_the_volume_has_grown(node: Machine, job: Job) -> None:
    rule = {"onReasons": ["StorageFull"], "action": "restart"}
    job.apply(
        checkpoint={"volume": _existing()},
        recovery={"rules": [rule], "maxRestarts": 30, "backoff": {"initial": "5s", "max": "5s"}},
    )
    job.eventually(lambda: job.status.get("restarts", 0) > 0, "restart")
    assert job.saved > 0, "the checkpoint that fits is kept"
    node.run("mount", "-o", f"remount,size={ENOUGH}", f"/run/{job.namespace}")
    status = job.succeeds("StorageFull")
    assert status["restarts"] > 0


def _existing() -> dict[str, Any]:
    return {"existingClaim": CLAIM, "size": None, "accessMode": None}


def _claim() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _volume(namespace: str, folder: str, node: str) -> dict[str, Any]:
    """Pods that want it go to its node."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": CLAIM},
            "local": {"path": folder},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
