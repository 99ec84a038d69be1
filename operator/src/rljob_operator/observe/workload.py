"""The state of the job's Workload in Kueue, derived once from its manifest.

          create                 quota                  Kueue wants it back
ABSENT ──────────> WAITING ──────────────> ADMITTED ──────────────────────────> EVICTED
                      ^                                                            │
                      └──────────── the pods are gone, the quota is released ──────┘
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from rljob_api.sizes import sized
from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import WORKLOAD, Manifest
from rljob_operator.observe.preemptor import by_name
from rljob_operator.observe.snapshot import Snapshot, condition_is, condition_of, is_deleting


class WorkloadState(Enum):
    NOT_QUEUED = auto()  # the job names no queue, and has no Workload
    NO_KUEUE = auto()  # it names a queue, and Kueue is not installed
    ABSENT = auto()
    NEEDLESS = auto()  # the job names no queue any more, and its Workload has no quota
    WAITING = auto()  # for quota, or for admission checks
    ADMITTED = auto()
    EVICTED = auto()  # it has quota that Kueue wants back
    FINISHED = auto()
    DELETING = auto()


@dataclass(frozen=True, slots=True)
class Workload:
    """found: as the API server has it; None if there is none.

    reason, message: Kueue's own, of the wait, an eviction or the end; empty if it gives none. The message names a
    preemptor.
    """

    state: WorkloadState
    found: Manifest | None = None
    reason: str = ""
    message: str = ""

    @property
    def queue(self) -> str | None:
        """The LocalQueue that has it."""
        name: str | None = None if self.found is None else self.found["spec"].get("queueName")
        return name

    @property
    def cluster_queue(self) -> str | None:
        """The ClusterQueue whose quota it has."""
        name: str | None = self.admission.get("clusterQueue")
        return name

    @property
    def admission(self) -> Manifest:
        """Empty without quota."""
        return (self.found or {}).get("status", {}).get("admission") or {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Pods of each group that have quota: those admitted, without those given back. Empty without quota."""
        found = self.found or {}
        whole = {each["name"]: int(each["count"]) for each in found.get("spec", {}).get("podSets", ())}
        back = {each["name"]: int(each["count"]) for each in found.get("status", {}).get("reclaimablePods", ())}
        assigned = {each["name"]: int(each.get("count", whole[each["name"]])) for each in self._assigned}
        return {name: min(count, whole[name] - back.get(name, 0)) for name, count in assigned.items()}

    @property
    def _assigned(self) -> list[Manifest]:
        assigned: list[Manifest] = self.admission.get("podSetAssignments", [])
        return assigned

    @property
    def is_active(self) -> bool:
        """Whether it may be admitted. Kueue or a person may deactivate it."""
        return self.found is None or self.found["spec"].get("active") is not False


def with_quota(job: Job, workload: Workload) -> Job:
    """The job, with no more pods than Kueue has admitted."""
    counts = workload.counts
    if job.read is None or not counts:
        return job
    nodes = counts.get(names.TRAINER_GROUP, job.read.cluster.nodes)
    models = {model.name: counts.get(names.reward_group(model.name)) for model in job.read.rewards.served}
    replicas = {name: count for name, count in models.items() if count is not None}
    least = all(replicas.get(model.name, model.replicas) >= model.replicas for model in job.read.rewards.served)
    if nodes >= job.read.cluster.nodes and least:
        return job
    return replace(job, read=sized(job.read, nodes, replicas), whole=job.read)


def derive_workload(snapshot: Snapshot) -> Workload:
    found, queue = snapshot.workload, snapshot.job.queue
    if found is None:
        without = WorkloadState.NO_KUEUE if WORKLOAD in snapshot.missing else WorkloadState.ABSENT
        return Workload(WorkloadState.NOT_QUEUED if queue is None else without)
    state = _state(found, queue)
    said = condition_of(found, _SAID.get(state, "QuotaReserved"))
    message = by_name(said.get("message", ""), snapshot.preemptor)
    if state is WorkloadState.WAITING and condition_is(found, "QuotaReserved"):
        message = "; ".join(_checks(found)) or message
    return Workload(state, found, said.get("reason", ""), message)


_SAID = {WorkloadState.EVICTED: "Evicted", WorkloadState.FINISHED: "Finished"}
"""The condition whose reason and message count."""


def _state(found: Manifest, queue: str | None) -> WorkloadState:
    if is_deleting(found):
        return WorkloadState.DELETING
    if condition_is(found, "Finished"):
        return WorkloadState.FINISHED
    if condition_is(found, "QuotaReserved"):
        if condition_is(found, "Evicted") or found["spec"].get("active") is False:
            return WorkloadState.EVICTED
        return WorkloadState.ADMITTED if condition_is(found, "Admitted") else WorkloadState.WAITING
    return WorkloadState.NEEDLESS if queue is None else WorkloadState.WAITING


def _checks(found: Manifest) -> Iterator[str]:
    """The admission checks that are not ready, and what they say."""
    for check in found.get("status", {}).get("admissionChecks", ()):
        if check.get("state") != "Ready":
            words = check.get("message")
            yield f"admission check {check['name']} is {check.get('state', 'Pending')}" + (
                f": {words}" if words else ""
            )
