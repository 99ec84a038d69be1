"""Plans for snapshots, and the snapshots that many of the tables begin with."""

from typing import Any

from rljob_api.contract import ExitRecord
from rljob_operator.decide import decide
from rljob_operator.head import RayJobState
from rljob_operator.kube.kinds import RAY_CLUSTER, Ref
from rljob_operator.plan import Plan
from rljob_operator.snapshot import HeadReport
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    PODS,
    SETTINGS,
    attempted,
    ray_cluster,
    reports,
    snapshot,
)

CLUSTER = Ref(RAY_CLUSTER, "team", "job", CLUSTER_UID)


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
