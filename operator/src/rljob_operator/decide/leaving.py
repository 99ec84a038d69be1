"""The gate of jobs whose head pod was asked to end, as by a drain. No RayCluster survives its head, so another follows.

asked ──> the driver saves a checkpoint and stops, or goes with its pod ──> another RayCluster, free of charge
  └──> evictionGracePeriod passes ──> the RayCluster is deleted
"""

from typing import Any

from rljob_api.conditions import Reason
from rljob_operator.decide.ending import cluster
from rljob_operator.decide.step import Step
from rljob_operator.decide.stopping import STOP_POLL_SECONDS, grace_left
from rljob_operator.observe.cluster import head_leaves
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.settings import Settings

_WHY = "the head pod was asked to end"


def leaving(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """That the driver was asked to stop, by the pod's preStop hook, is said while it does: afterwards there may be
    nobody to tell how it ended.
    """
    driver, recovery, head = snapshot.job.status.driver, snapshot.job.status.recovery, snapshot.head
    if not head_leaves(snapshot):
        return None
    if driver is not None and driver.state == "Reserved" and head is not None and head.driver is None:
        over = {"driver": driver.model_copy(update={"state": "Ended"})}
        return Step("Recovering", Reason.STOPPED_ON_REQUEST, _WHY, over | another_cluster(snapshot), again_in=0.0)
    if driver is not None and driver.state != "Ended":
        stop_requested = driver.stop_requested or snapshot.now
        asked = driver.model_copy(update={"stop_requested": stop_requested})
        late = grace_left(snapshot, stop_requested) <= 0
        what = "did not stop within recovery.evictionGracePeriod" if late else "saves a checkpoint first"
        return Step(
            "Recovering", Reason.STOPPED_ON_REQUEST, f"{_WHY}: the driver {what}", {"driver": asked},
            delete=tuple(cluster(snapshot)) if late else (), again_in=STOP_POLL_SECONDS,
        )  # fmt: skip
    if recovery.action == "rebuild_cluster" and recovery.cluster_uid == snapshot.cluster_uid:
        return None
    return Step("Recovering", Reason.STOPPED_ON_REQUEST, _WHY, another_cluster(snapshot), again_in=0.0)


def another_cluster(snapshot: Snapshot) -> dict[str, Any]:
    """Changes of the status: the RayCluster is replaced, and nothing is charged. A wait that is under way goes on."""
    change = {"action": "rebuild_cluster", "cluster_uid": snapshot.cluster_uid}
    return {"recovery": snapshot.job.status.recovery.model_copy(update=change)}
