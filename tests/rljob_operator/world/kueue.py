"""Kueue 0.19 as far as the operator can tell it from the real one: it has quota for any job, and takes it back."""

from typing import Any

from rljob_operator.kube.kinds import RESOURCE_FLAVOR, WORKLOAD, Key, Manifest
from rljob_operator.observe.snapshot import condition_is, condition_of, is_deleting
from tests.rljob_operator.world.api_server import ApiServer
from tests.rljob_operator.world.clock import now, stamp

FLAVOR = "spot"

_TAKEN_BACK = ("Deactivated", "PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped", "LocalQueueStopped")
"""Reasons of a Workload that is not requeued, after which Kueue itself requeues it later. It compares whole words."""


class Kueue:
    """open: whether it admits. A Workload with the finalizer keeps its quota until it has gone."""

    def __init__(self, server: ApiServer) -> None:
        self._server, self.open = server, True
        server.create(RESOURCE_FLAVOR.manifest({"name": FLAVOR}, spec={"nodeLabels": {"pool": FLAVOR}}))

    @property
    def workloads(self) -> list[Manifest]:
        return self._server.all(WORKLOAD)

    def step(self) -> bool:
        """Reconcile each Workload once."""
        before = self._server.version
        for each in self.workloads:
            if not is_deleting(each) and not condition_is(each, "Finished"):
                self._reconcile(each)
        return self._server.version > before

    def holds(self) -> bool:
        """Whether a job has quota."""
        return any(map(holds_quota, self.workloads))

    def finish(self) -> None:
        """As of the copies in other clusters."""
        for each in self.workloads:
            self._say(each, Finished=(True, "Succeeded"))

    def evict(self, reason: str = "Preempted") -> None:
        for each in self.workloads:
            if holds_quota(each) and not condition_is(each, "Evicted"):
                self._say(each, Evicted=(True, reason))

    def activate(self, *, active: bool) -> None:
        """As a person does."""
        for each in self.workloads:
            self._server.patch(WORKLOAD, Key.of(each), {"spec": {"active": active}})

    def give_up(self) -> None:
        """After too many requeues."""
        self.evict("DeactivatedDueToRequeuingLimitExceeded")
        self.activate(active=False)

    def delete(self) -> None:
        """As a person does."""
        for each in self.workloads:
            self._server.delete(each)

    def _reconcile(self, workload: Manifest) -> None:
        active = workload["spec"].get("active") is not False
        if not active and not condition_is(workload, "Evicted"):
            self._say(workload, Evicted=(True, "Deactivated"))
        elif active and not holds_quota(workload):
            self._queue(workload)

    def _queue(self, workload: Manifest) -> None:
        if condition_is(workload, "Requeued", "False"):
            if condition_of(workload, "Requeued")["reason"] in _TAKEN_BACK:
                self._say(workload, Requeued=(True, "BackoffFinished"))
        elif self.open:
            assigned = [
                {"name": each["name"], "count": each["count"], "flavors": {"cpu": FLAVOR}}
                for each in workload["spec"]["podSets"]
            ]
            rows = {"QuotaReserved": (True, "QuotaReserved"), "Admitted": (True, "Admitted")}
            rows |= {"Evicted": (False, "QuotaReserved")} if condition_is(workload, "Evicted") else {}
            self._say(workload, {"clusterQueue": "all", "podSetAssignments": assigned}, **rows)
        elif not condition_is(workload, "QuotaReserved", "False"):
            self._say(workload, QuotaReserved=(False, "Pending"))

    def _say(self, workload: Manifest, admission: Manifest | None = None, **rows: tuple[bool, str]) -> None:
        conditions = {each["type"]: each for each in workload.get("status", {}).get("conditions", ())}
        for kind, (holds, reason) in rows.items():
            conditions[kind] = {"type": kind, "status": str(holds), "reason": reason, "message": "it says so"} | {
                "lastTransitionTime": stamp(now()), "observedGeneration": workload["metadata"]["generation"],
            }  # fmt: skip
        status: dict[str, Any] = {"conditions": list(conditions.values())}
        status |= {} if admission is None else {"admission": admission}
        self._server.patch(WORKLOAD, Key.of(workload), {"status": status}, "status")


def holds_quota(workload: Manifest) -> bool:
    return condition_is(workload, "QuotaReserved") and not condition_is(workload, "Finished")
