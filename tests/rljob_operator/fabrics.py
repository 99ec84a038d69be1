"""Jobs with a fabric preflight, and what is decided for them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rljob_api.conditions import Reason
from rljob_api.contract import ExitRecord
from rljob_api.preflight import BadNode, FabricPair, PreflightRecord
from rljob_api.v1alpha1 import Condition, ExcludedNode
from rljob_api.v1alpha1.status import EXCLUDED
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.kube.kinds import Manifest
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import living, plan_for, recovering
from tests.rljob_operator.queues import WAITING, plan_of, queued_job, workload
from tests.rljob_operator.snapshots import NOW, attempted, job, pod, ray_cluster, reports

FABRIC: dict[str, Any] = {"preflight": {"fabric": {"minBusBandwidthGBps": 40}}}
WORKERS = [pod("worker-0", names.WORKER, node="n0", podIP="10.0.0.1"), pod("worker-1", names.WORKER, node="n1")]
PODS = [pod("head", names.HEAD), *WORKERS]
PAIR = FabricPair(hosts=["worker-0", "worker-1"], ranks=[0, 4], bus_bandwidth=3.21)


def measured(*bad: str, passed: bool = False, **changes: Any) -> PreflightRecord:
    """bad: hosts of the blamed nodes."""
    blamed = [BadNode(host=host, address="10.0.0.9") for host in bad]
    reason = None if passed else Reason.FABRIC_SLOW
    found = {"passed": passed, "reason": reason, "bad_nodes": blamed, "pairs": [PAIR], "time": NOW, "seconds": 9.0}
    return PreflightRecord.model_validate(found | changes)


def failed(record: PreflightRecord | None, base: Any = None, **given: Any) -> dict[str, Any]:
    """The driver has ended with it."""
    ended = ExitRecord(code=75, reason="FabricSlow", message="words")
    head = reports(RayJobState.FAILED, exit=ended, preflight=record)
    return living(**{"head": head, "pods": PODS, "base": base or job(**FABRIC)} | given)


def without(*nodes: str) -> dict[str, Any]:
    """The status of a job whose worker pods avoid them."""
    return {"excluded_nodes": [ExcludedNode(name=name, reason="FabricSlow", since=NOW) for name in nodes]}


def preflights() -> Iterator[tuple[str, Plan]]:
    asks, good = job(**FABRIC), measured(passed=True)
    before = Condition(
        type="PreflightPassed", status="False", reason="FabricSlow", message="m", last_transition_time=NOW
    )
    yield "a preflight: not yet", plan_for(base=asks, **living())
    yield "a preflight: passed", plan_for(**living(base=asks, pods=PODS, head=reports(preflight=good)))
    yield (
        "a preflight: passed again",
        plan_for(**living(base=asks, pods=PODS, head=reports(preflight=good), conditions=[before])),
    )
    yield "a preflight: not measured again", plan_for(**living(base=asks, conditions=[before]))
    yield "a preflight: asked for no more", plan_for(**living(conditions=[before]))
    yield "a preflight: one node", plan_for(**failed(measured("worker-1")))
    wrong = PAIR.model_copy(update={"bus_bandwidth": None, "wrong_elements": 7})
    both = measured("worker-1", "worker-0", pairs=[wrong, PAIR, PAIR, PAIR, PAIR], reason=Reason.FABRIC_WRONG)
    yield "a preflight: two nodes", plan_for(**failed(both))
    yield "a preflight: no node", plan_for(**failed(measured()))
    yield "a preflight: a pod that is gone", plan_for(**failed(measured("worker-7")))
    by_address = measured(bad_nodes=[BadNode(host="n0.cluster", address="10.0.0.1")])
    yield "a preflight: by its address", plan_for(**failed(by_address))
    yield "a preflight: a record that cannot be read", plan_for(**failed(None))
    yield "a preflight: excluded before", plan_for(**failed(measured("worker-1")), **without("n1"))
    full = without(*(f"old-{number}" for number in range(EXCLUDED)))
    yield "a preflight: one too many", plan_for(**failed(measured("worker-1")), **full)
    lost = failed(measured("worker-1"), cluster=ray_cluster(-1))
    yield "a preflight: the head is lost too", plan_for(**lost)


def exclusions() -> Iterator[tuple[str, Plan]]:
    known, asks = without("n1"), job(**FABRIC)
    yield (
        "excluded: the cluster goes",
        plan_for(base=asks, cluster=ray_cluster(), pods=PODS, **recovering("rebuild_cluster"), **known),
    )
    yield "excluded: another cluster", plan_for(base=asks, **recovering("rebuild_cluster"), **known)
    why = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    waits = [PODS[0], WORKERS[0], pod("worker-2", names.WORKER, "Pending", conditions=[why])]
    given: dict[str, Any] = {"cluster": ray_cluster(1, provisioned=False, uid="c2"), "pods": waits, "base": asks}
    yield "excluded: too few nodes are left", plan_for(**given, **recovering("rebuild_cluster"), **known)
    suspended = job(suspend=True, **FABRIC)
    yield "excluded: suspended", plan_for(base=suspended, **attempted("Ended", phase="Suspending"), **known)
    yield "excluded: waits for quota", plan_of(WAITING, **recovering("rebuild_cluster"), **known)
    yield "excluded: admitted before", plan_of(workload(admitted=True), **_rebuilt(), **known)
    yield "excluded: its node was chosen before", plan_of(_assigned(), **_rebuilt(), **known)
    yield (
        "excluded: its node was chosen before, nothing runs",
        plan_of(_assigned(), **attempted("Ended", phase="Suspending"), **known),
    )
    base = queued_job()
    base = replace(base, status=base.status.model_copy(update=known))
    yield "excluded: its nodes were chosen since", plan_of(_assigned(base=base), phase="Queued", **known)


def _rebuilt() -> dict[str, Any]:
    return {"cluster": ray_cluster(), "pods": PODS, **recovering("rebuild_cluster")}


def _assigned(**given: Any) -> Manifest:
    """Admitted by topology-aware scheduling."""
    found = workload(admitted=True, **given)
    found["status"]["admission"]["podSetAssignments"][1]["topologyAssignment"] = {"levels": ["kubernetes.io/hostname"]}
    return found


GROUPS = (preflights, exclusions)
