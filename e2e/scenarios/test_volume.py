"""The checkpoint volume is full: the job says so, and goes on where it was once there is room."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster.access import Access
from e2e.cluster.layout import Layout
from e2e.nodes.machine import Machine
from e2e.scenarios.job import LONG, Job

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
    failed, status = job.fails("StorageFull"), job.status
    assert status["restarts"] == 0
    assert "free space" in failed["message"]
    assert status["checkpoint"]["step"] > 0, "the one that fits is kept"
    job.eventually(lambda: not job.pods(), "end of the pods", 120)


def test_a_job_that_may_restart_goes_on_once_the_volume_has_grown(node: Machine, job: Job) -> None:
    rule = {"onReasons": ["StorageFull"], "action": "restart"}
    job.apply(
        **LONG,
        checkpoint={"volume": _existing()},
        recovery={"rules": [rule], "maxRestarts": 30, "backoff": {"initial": "5s", "max": "5s"}},
    )
    job.eventually(lambda: job.status.get("restarts", 0) > 0 and job.status.get("checkpoint"), "restart")
    saved = job.saved
    node.run("mount", "-o", f"remount,size={ENOUGH}", f"/run/{job.namespace}")
    job.trains()
    assert (job.claim(job.status["attempt"]).resumed_step or 0) >= saved > 0, "it does not start over"

    status = job.succeeds_after("StorageFull")
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
