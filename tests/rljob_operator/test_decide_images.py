"""What is decided where the image of a RayCluster's pods cannot be used: tables over snapshots."""

from typing import Any

import pytest

from rljob_operator import names
from tests.rljob_operator.decisions import phase, plan_for
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    NOW,
    PODS,
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


@pytest.mark.parametrize(("owner", "phase_"), [("uid-of-another", "Starting"), (CLUSTER_UID, "Failed")])
def test_nor_is_that_of_pods_of_another_cluster_of_which_a_late_watch_tells(owner, phase_):
    told = pod("worker-1", names.WORKER, "Pending", containerStatuses=NOT_THERE)
    told["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True, "kind": "RayCluster", "name": "job"}]
    assert phase(plan_for(**NEVER_UP | {"pods": [*PODS[:2], told]})) == phase_
