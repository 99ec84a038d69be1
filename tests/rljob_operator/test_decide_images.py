"""What is decided where the image of a RayCluster's pods cannot be used: tables over snapshots."""

from typing import Any

import pytest

from rljob_operator import names
from rljob_operator.kube.kinds import Manifest
from tests.rljob_operator.decisions import living, phase, plan_for
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    NOW,
    PODS,
    attempted,
    conditions,
    pod,
    ray_cluster,
    stamp,
)

NOT_THERE = [{"name": "ray-worker", "image": "i:2", "state": {"waiting": {
    "reason": "ImagePullBackOff", "message": "i:2: not found"}}}]  # fmt: skip
UNPULLED = pod("worker-1", names.WORKER, "Pending", containerStatuses=NOT_THERE)
LEAVING = pod("worker-1", names.WORKER, "Pending", containerStatuses=NOT_THERE)
LEAVING["metadata"]["deletionTimestamp"] = stamp(NOW)

NEVER_UP: dict[str, Any] = {"cluster": ray_cluster(1, provisioned=False), "pods": [*PODS[:2], UNPULLED]}
IMAGES: list[tuple[str, dict[str, Any], str, bool]] = [
    ("of a new job", NEVER_UP, "Failed", True),
    ("of a pod that leaves", NEVER_UP | {"pods": [*PODS[:2], LEAVING]}, "Starting", False),
    ("after all pods were ready", {"cluster": ray_cluster(1), "pods": [*PODS[:2], UNPULLED]}, "Starting", False),
    ("of workers that a quota let in late", {"cluster": ray_cluster(0), "pods": [PODS[0], UNPULLED]}, "Failed", True),
    ("beside a driver", living(cluster=ray_cluster(1), pods=[*PODS[:2], UNPULLED]), "Recovering", False),
    ("in a cluster after an attempt", NEVER_UP | attempted("Ended", phase="Recovering"), "Recovering", True),
    (
        "of all workers after an attempt in this cluster",
        {"cluster": ray_cluster(0), "pods": [PODS[0], UNPULLED]} | attempted("Ended", phase="Recovering"),
        "Recovering", False,
    ),
    ("of a job that was resumed with it", NEVER_UP | attempted("Ended", phase="Starting"), "Starting", True),
]  # fmt: skip


def test_an_image_of_an_older_cluster_s_pods_is_not_the_job_s():
    plan = plan_for(**NEVER_UP | {"cluster": None})
    assert (phase(plan), conditions(plan.status)["Ready"]) == ("Starting", ("False", "ClusterDeleting"))


@pytest.mark.parametrize(("owner", "phase_"), [("uid-of-another", "Starting"), (CLUSTER_UID, "Failed")])
def test_nor_is_that_of_pods_of_another_cluster_of_which_a_late_watch_tells(owner, phase_):
    told = pod("worker-1", names.WORKER, "Pending", containerStatuses=NOT_THERE)
    told["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True, "kind": "RayCluster", "name": "job"}]
    assert phase(plan_for(**NEVER_UP | {"pods": [*PODS[:2], told]})) == phase_


@pytest.mark.parametrize(("given", "phase_", "stalls"), [row[1:] for row in IMAGES], ids=[row[0] for row in IMAGES])
def test_an_image_that_cannot_be_pulled_ends_only_a_job_that_has_not_begun(given, phase_, stalls):
    """Where it has, it waits; and nobody is told that it goes on by itself, where no pod of its cluster had one."""
    plan = plan_for(**given)

    assert phase(plan) == phase_
    assert plan.status is not None
    reason = "ImageNotUsable" if stalls else "ClusterNotReady"
    assert conditions(plan.status)["Ready"] == ("False", reason)
    assert conditions(plan.status)["Stalled"][0] == f"{stalls}"
    assert plan.end is None
    assert plan.status.driver is None or plan.status.driver.state == given["driver"].state
    (ready,) = (each for each in plan.status.conditions if each.type == "Ready")
    assert "i:2: not found" in ready.message


@pytest.mark.parametrize(
    ("message", "phase_"),
    [
        ("failed to resolve reference: pull access denied, repository does not exist", "Failed"),
        ("reg/x:1: manifest unknown", "Failed"),
        ('denied: Permission denied for "1" from request "/v2/x/manifests/1"', "Failed"),
        ("failed to authorize: unexpected status from GET request to https://reg/token: 403 Forbidden", "Failed"),
        ("failed to extract layer sha256:a: content digest sha256:a: not found", "Starting"),
        ("mkdir /var/lib/containerd/tmpmounts: permission denied", "Starting"),
        ("failed to do request: dial tcp: lookup reg: no such host", "Starting"),
    ],
)
def test_an_image_that_its_registry_refuses_ends_a_job_and_a_node_that_cannot_store_it_does_not(message, phase_):
    waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "reg/x:1": ErrImagePull: {message}'}
    container = {"name": "ray-worker", "image": "reg/x:1", "state": {"waiting": waiting}}
    unpulled = pod("worker-1", names.WORKER, "Pending", containerStatuses=[container])
    assert phase(plan_for(**NEVER_UP | {"pods": [*PODS[:2], unpulled]})) == phase_


JUST_FAILED: dict[str, Any] = {"containerStatuses": [{"name": "ray-worker", "image": "reg/x:1", "state": {"waiting": {
    "reason": "ErrImagePull", "message": "401 Unauthorized"}}}]}  # fmt: skip


@pytest.mark.parametrize(("attempt", "reason"), [(0, "ClusterNotReady"), (1, "ImageNotUsable")])
def test_a_first_pull_that_fails_ends_no_job_and_stalls_only_one_that_has_begun(attempt, reason):
    """A node that is new may get its credentials yet. Once it backs off, its later tries must not look like news."""
    pods = [*PODS[:2], pod("worker-1", names.WORKER, "Pending", **JUST_FAILED)]
    plan = plan_for(**NEVER_UP | {"pods": pods, "attempt": attempt})
    assert (phase(plan), conditions(plan.status)["Ready"][1]) == ("Starting", reason)
    assert conditions(plan.status)["Stalled"][0] == f"{attempt > 0}"


def not_started(message: str) -> Manifest:
    waiting = {"reason": "RunContainerError", "message": message}
    container = {"name": "ray-worker", "image": "i:2", "state": {"waiting": waiting}}
    return pod("worker-1", names.WORKER, "Pending", containerStatuses=[container])


@pytest.mark.parametrize(
    ("message", "phase_"),
    [
        ('exec: "ray": executable file not found in $PATH', "Failed"),
        ("executable file `ray` not found in $PATH", "Failed"),  # crun's words
        ("exec /opt/rljob/bin/rljob: exec format error", "Failed"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "Starting"),
        ('exec: "nvidia-container-runtime": executable file not found in $PATH', "Starting"),
        ("error mounting /var/lib/kubelet/pods/1/volumes to rootfs: no such file or directory", "Starting"),
    ],
)
def test_an_image_that_lacks_its_program_ends_a_job_and_a_node_s_fault_does_not(message, phase_):
    plan = plan_for(cluster=ray_cluster(1, provisioned=False), pods=[*PODS[:2], not_started(message)])
    assert phase(plan) == phase_
    assert plan.status is not None
    (ready,) = (each for each in plan.status.conditions if each.type == "Ready")
    assert message in ready.message
