"""What the status remembers of failures, so that any operator goes on from there."""

from datetime import datetime, timedelta

from rljob_api.recovery import Action, Decision, Failure, History, Level
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator.decide.step import MESSAGE
from rljob_operator.observe.snapshot import Snapshot, made_at


def history(recovery: RecoveryStatus) -> History:
    cures = {Level[name.upper()]: times for name, times in recovery.cures.items()}
    return History(recovery.durable_step, recovery.charged, recovery.bugs, cures)


def remembered(
    before: History, failure: Failure, decision: Decision, snapshot: Snapshot, cluster_uid: str | None
) -> RecoveryStatus:  # fmt: skip
    """What is done about the failure, and the history with it."""
    after = before.after(failure, decision)
    return RecoveryStatus.model_validate(
        {
            "durable_step": after.durable_step,
            "charged": after.charged,
            "bugs": after.bugs,
            "cures": {level.name.lower(): times for level, times in after.cures.items()},
            "action": str(decision.action),
            "reason": decision.reason,
            "message": f"{failure}"[:MESSAGE],
            "decided": snapshot.now,
            "not_before": snapshot.now + timedelta(seconds=decision.delay),
            "newest_pod": _newest_pod(snapshot) if decision.action is Action.REPLACE_PODS else None,
            "cluster_uid": cluster_uid,
        }
    )


def _newest_pod(snapshot: Snapshot) -> datetime | None:
    """Of those that a driver could run on. One that has not started yet replaces one that is lost already."""
    started = [pod for pod in snapshot.ray_pods if pod.get("status", {}).get("phase") != "Pending"]
    return max(map(made_at, started), default=None)


def settled(recovery: RecoveryStatus) -> RecoveryStatus:
    """With the count of restarts, and nothing under way."""
    return RecoveryStatus(
        durable_step=recovery.durable_step, charged=recovery.charged, bugs=recovery.bugs, cures=recovery.cures
    )
