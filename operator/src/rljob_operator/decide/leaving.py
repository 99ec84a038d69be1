"""The gate of jobs whose head pod was asked to end, for example by a drain. A RayCluster does not survive its head.

asked ──> the driver saves a checkpoint and stops, or goes with its pod ──> another RayCluster, free of charge
  └──> evictionGracePeriod passes ──> the RayCluster is deleted
"""

from rljob_api.conditions import Reason
from rljob_operator.decide.ending import cluster
from rljob_operator.decide.judging import another_cluster, over
from rljob_operator.decide.stopping import STOP_POLL_SECONDS, grace_left
from rljob_operator.observe.driver import DriverState
from rljob_operator.observe.facts import Facts
from rljob_operator.plan import Step
from rljob_operator.settings import Settings

_WHY = "The head pod was asked to end"


def leaving(facts: Facts, _settings: Settings) -> Step | None:
    """The status says that the driver was asked to stop, by the pod's preStop hook, while it does: afterwards there may
    be no way to learn how it ended.
    """
    driver, recovery = facts.driver, facts.job.status.recovery
    if not facts.cluster.head_leaves:
        return None
    if driver.state in (DriverState.RESERVED, DriverState.UNCONFIRMED):
        changes = over(facts) | another_cluster(facts)
        return Step("Recovering", Reason.STOPPED_ON_REQUEST, _WHY, changes, again_in=0.0)
    if driver.is_open and driver.status is not None:
        stop_requested = driver.status.stop_requested or facts.now
        asked = driver.status.model_copy(update={"stop_requested": stop_requested})
        late = grace_left(facts, stop_requested) <= 0
        what = "did not stop within spec.recovery.evictionGracePeriod" if late else "saves a checkpoint first"
        return Step(
            "Recovering", Reason.STOPPED_ON_REQUEST, f"{_WHY}; the driver {what}", {"driver": asked},
            delete=tuple(cluster(facts.seen)) if late else (), again_in=STOP_POLL_SECONDS,
        )  # fmt: skip
    if recovery.action == "rebuild_cluster" and recovery.cluster_uid == facts.seen.cluster_uid:
        return None
    return Step("Recovering", Reason.STOPPED_ON_REQUEST, _WHY, another_cluster(facts), again_in=0.0)
