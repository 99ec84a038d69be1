"""What the status remembers of failures, so that any operator goes on from there."""

from datetime import timedelta

from rljob_api.recovery import Decision, Failure, History, Level
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator.decide.step import MESSAGE
from rljob_operator.snapshot import Snapshot


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
            "cluster_uid": cluster_uid,
        }
    )


def settled(recovery: RecoveryStatus) -> RecoveryStatus:
    """With the count of restarts, and nothing under way."""
    return RecoveryStatus(
        durable_step=recovery.durable_step, charged=recovery.charged, bugs=recovery.bugs, cures=recovery.cures
    )
