"""Plans for snapshots, and the snapshots that many of the tables begin with."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator import decide as decisions
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.kube.errors import KubeError
from rljob_operator.kube.kinds import RAY_CLUSTER, Manifest, Ref
from rljob_operator.observe.facts import derive
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from rljob_operator.settings import Settings
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    NOW,
    PODS,
    SETTINGS,
    attempted,
    job,
    pod,
    ray_cluster,
    reports,
    snapshot,
    stamp,
)

CLUSTER = Ref(RAY_CLUSTER, "team", "job", CLUSTER_UID)


def decide(seen: Snapshot, settings: Settings = SETTINGS) -> Plan:
    return decisions.decide(derive(seen), settings)


def refused(seen: Snapshot, plan: Plan, error: KubeError) -> Plan:
    return decisions.refused(derive(seen), plan, error)


def not_taken(seen: Snapshot, plan: Plan, why: str) -> Plan:
    return decisions.not_taken(derive(seen), plan, why)


def broken(seen: Snapshot, error: Exception) -> Plan:
    return decisions.broken(seen.job, seen.now, error)


def plan_for(**given: Any) -> Plan:
    return decide(snapshot(**given), SETTINGS)


def living(**given: Any) -> dict[str, Any]:
    """A snapshot's arguments: the driver runs."""
    return {"cluster": ray_cluster(), "pods": PODS, "head": reports()} | attempted("Submitted") | given


def ended(code: int, reason: str, message: str = "words", field: str | None = None, **given: Any) -> dict[str, Any]:
    state = RayJobState.SUCCEEDED if code == 0 else RayJobState.FAILED
    record = ExitRecord(code=code, reason=reason, message=message, field=field)
    return living(head=reports(state, exit=record), **given)


def forgotten(code: int, reason: str) -> dict[str, Any]:
    """The driver has ended so, and Ray's head was restarted since."""
    return living(head=HeadReport(None, exit=ExitRecord(code=code, reason=reason, message="words"), begun=True))


def phase(plan: Plan) -> str:
    assert plan.status is not None
    return plan.status.phase


def leaving_head(phase_: str = "Running", by: str = "EvictionByEvictionAPI", **status: Any) -> Manifest:
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": by}]
    head = pod("head", names.HEAD, phase_, conditions=disrupted, **status)
    head["metadata"]["deletionTimestamp"] = stamp(NOW + timedelta(seconds=150))
    return head


def restarted(ago: float | None) -> list[Any]:
    """The pods of a cluster that has been up for 300 s and lost a worker. ago: seconds since the head's container
    ended; None where the kubelet does not know that any more."""
    last = {} if ago is None else {"terminated": {"exitCode": 1, "finishedAt": stamp(NOW - timedelta(seconds=ago))}}
    ray = {"name": names.HEAD_CONTAINER, "restartCount": 1, "state": {"running": {}}, "lastState": last}
    return [pod("head", names.HEAD, containerStatuses=[ray]), PODS[1]]


def recovering(action: str, *, wait: float = 0.0) -> dict[str, Any]:
    recovery = RecoveryStatus(
        charged=1, action=action, decided=NOW, not_before=NOW + timedelta(seconds=wait), cluster_uid=CLUSTER_UID,
        newest_pod=NOW - timedelta(seconds=1),
    )  # fmt: skip
    return attempted("Ended", recovery=recovery, phase="Recovering")


def finished(phase_: str, reason: str, hours: float) -> dict[str, Any]:
    told = decide(snapshot(**(ended(0, "Completed") if phase_ == "Succeeded" else ended(64, reason))), SETTINGS).status
    assert told is not None
    return {name: getattr(told, name) for name in type(told).model_fields} | {
        "completion_time": NOW - timedelta(hours=hours)
    }


def deleted(**given: Any) -> Snapshot:
    """A job that was deleted at NOW."""
    return snapshot(replace(job(), deleted=NOW), **given)
