"""Builders of jobs with a queue, and what is decided for them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from rljob_api.v1alpha1 import CheckpointStatus, Condition, Progress, WorkloadStatus
from rljob_operator import names
from rljob_operator.job import Job, read_job
from rljob_operator.kube.kinds import (
    OF_KUEUE,
    RESOURCE_FLAVOR,
    RLJOB,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
    Key,
    Kind,
    Manifest,
    Ref,
)
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from rljob_operator.render import workload_of
from tests.rljob_operator.decisions import decide, ended, living
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    UID,
    attempted,
    manifest,
    ray_cluster,
    reports,
    snapshot,
    stamp,
)

NAME = names.workload("job", UID)
WAITS = "couldn't assign flavors to pod set trainer: insufficient unused quota for nvidia.com/gpu in flavor a100"
PREEMPTED = "Preempted to accommodate a workload (UID: 77, JobUID: 88) due to prioritization in the ClusterQueue"

FLAVOR: Manifest = RESOURCE_FLAVOR.manifest(
    {"name": "a100", "resourceVersion": "3"},
    spec={"nodeLabels": {"gpu": "a100"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
)
URGENT: Manifest = WORKLOAD_PRIORITY_CLASS.manifest({"name": "urgent", "resourceVersion": "4"}, value=1000)
CLUSTER_WIDE = {RESOURCE_FLAVOR: {Key("", "a100"): FLAVOR}, WORKLOAD_PRIORITY_CLASS: {Key("", "urgent"): URGENT}}


def queued_job(queue: str | None = "lab", priority: str | None = None, **spec: Any) -> Job:
    written = manifest(**spec)
    labels = {names.QUEUE_LABEL: queue, names.PRIORITY_LABEL: priority}
    written["metadata"]["labels"] = {key: value for key, value in labels.items() if value is not None}
    return read_job(written)


def told(kind: str, reason: str = "x", message: str = "", *, holds: bool = True) -> Manifest:
    return {
        "type": kind, "status": str(holds), "reason": reason, "message": message, "lastTransitionTime": stamp(NOW),
        "observedGeneration": 1,
    }  # fmt: skip


def workload(*conditions: Manifest, admitted: bool = False, base: Job | None = None, **changes: Any) -> Manifest:
    """conditions: in addition to those of an admission. changes: of its metadata or status; active: of its spec;
    made: when it was created.
    """
    made = workload_of(base or queued_job(), "lab", "trainer:1", SETTINGS, 0)
    made["metadata"] |= {"uid": "w-1", "resourceVersion": "20", "generation": 1}
    made["metadata"]["creationTimestamp"] = stamp(changes.pop("made", NOW - timedelta(minutes=5)))
    if "active" in changes:
        made["spec"]["active"] = changes.pop("active")
    status: Manifest = {"conditions": [*conditions]}
    if admitted:
        status["conditions"] = [told("QuotaReserved"), told("Admitted"), *conditions]
        status["admission"] = {"clusterQueue": "gpus", "podSetAssignments": [*map(_assigned, made["spec"]["podSets"])]}
    metadata = {key: changes.pop(key) for key in ("deletionTimestamp", "finalizers") if key in changes}
    return made | {"metadata": made["metadata"] | metadata, "status": status | changes}


def _assigned(pod_set: Manifest) -> Manifest:
    return {"name": pod_set["name"], "count": pod_set["count"], "flavors": {"cpu": "a100", "nvidia.com/gpu": "a100"}}


def seen(
    found: Manifest | None = None, missing: Sequence[Kind] = (), base: Job | None = None, **given: Any
) -> Snapshot:
    """found: its Workload."""
    made = snapshot(base or queued_job(), **given)
    children = {**made.children, **({WORKLOAD: {NAME: found}} if found else {})}
    return replace(made, children=children, cluster_wide=CLUSTER_WIDE, missing=frozenset(missing))


def plan_of(found: Manifest | None = None, missing: Sequence[Kind] = (), base: Job | None = None, **given: Any) -> Plan:
    return decide(seen(found, missing, base, **given))


def evicted(reason: str = "Preempted", message: str = PREEMPTED, **changes: Any) -> Manifest:
    return workload(told("Evicted", reason, message), admitted=True, **changes)


ADMITTED = workload(admitted=True)
READY = workload(told("PodsReady", "Started"), admitted=True)
WAITING = workload(told("QuotaReserved", "Pending", WAITS, holds=False))
TRAINED: dict[str, Any] = {
    "progress": Progress(step=25, total_steps=100), "checkpoint": CheckpointStatus(step=20, path="p", time=NOW),
    "workload": WorkloadStatus(name=NAME, queue="lab", cluster_queue="gpus"),
}  # fmt: skip


_DONE = Condition(type="Succeeded", status="True", reason="Completed", message="m", last_transition_time=NOW)
DONE = attempted("Ended", phase="Succeeded", completion_time=NOW, conditions=[_DONE])


def evicted_before(**workload_: Any) -> dict[str, Any]:
    """The status after the first look at an eviction."""
    before = Condition(type="Evicted", status="True", reason="Preempted", message="m", last_transition_time=NOW)
    status = WorkloadStatus(name=NAME, queue="lab", evictions=1, **workload_)
    return TRAINED | {"conditions": [before], "workload": status}


def asked(**given: Any) -> dict[str, Any]:
    """The driver was asked to stop at NOW."""
    made = living(**given)
    return made | {"driver": made["driver"].model_copy(update={"stop_requested": NOW})}


def zoned(own: str = "a", admitted: bool = True, **changes: Any) -> Manifest:
    """Worker pods want zone a, and an admission check puts them into zone b. own: the zone of the template."""
    template = {"spec": {"nodeSelector": {"zone": own}}}
    base = queued_job(cluster={"nodes": 2, "worker": {"template": template}})
    update = {"name": "trainer", "nodeSelector": {"zone": "b"}}
    check = {"name": "capacity", "state": "Ready", "podSetUpdates": [update]}
    return workload(admitted=admitted, base=base, **{"admissionChecks": [check]} | changes)


def failed_to_start() -> Manifest:
    found = zoned()
    found["status"]["conditions"].append(told("Finished", "FailedToStart", "capacity contradicts the template"))
    return found


NO_QUEUE = told("QuotaReserved", "Misconfigured", "LocalQueue lab doesn't exist", holds=False)


STARTS_NOTHING = {
    "no image": SETTINGS.model_copy(update={"trainer_image": None}),
    "the operator's namespace": SETTINGS.model_copy(
        update={"operator_namespace": "team", "protect_own_namespace": True}
    ),
}
"""Settings with which the job never has pods."""


def in_queue() -> Iterator[tuple[str, Plan]]:
    yield "queued, new", plan_of()
    yield "queued, without Kueue", plan_of(missing=OF_KUEUE)
    yield "queued, Kueue says nothing yet", plan_of(workload())
    yield "queued, Kueue has had no time to say anything", plan_of(workload(made=NOW))
    yield "queued, waits for quota", plan_of(WAITING)
    yield "queued, waits for an admission check", plan_of(
        workload(
            told("QuotaReserved"), admission={"clusterQueue": "gpus", "podSetAssignments": []},
            admissionChecks=[{"name": "nodes", "state": "Pending", "message": "2 nodes are created"}],
        )
    )  # fmt: skip
    yield "queued, its LocalQueue does not exist", plan_of(workload(NO_QUEUE))
    yield "queued, no LocalQueue can have that name", plan_of(base=queued_job("Team_A"))
    yield "queued, the new name of its queue cannot be one", plan_of(WAITING, base=queued_job("Team_A"))
    yield (
        "queued, deactivated",
        plan_of(workload(told("QuotaReserved", "Pending", "too often", holds=False), active=False)),
    )
    yield "queued in another queue now", plan_of(WAITING, base=queued_job("other"))
    yield "queued, of an unknown priority", plan_of(base=queued_job(priority="none"))
    yield "queued, now of an unknown priority", plan_of(WAITING, base=queued_job(priority="none"))
    yield "queued, now urgent", plan_of(WAITING, base=queued_job(priority="urgent"))
    yield "queued no more", plan_of(WAITING, base=queued_job(None))
    yield "queued, its Workload is deleted", plan_of(workload(deletionTimestamp=stamp(NOW)))
    for name, settings in STARTS_NOTHING.items():
        yield f"queued, {name}", decide(seen(), settings)
        yield f"waiting for quota, {name}", decide(seen(WAITING), settings)
        yield f"admitted, {name}", decide(seen(workload(admitted=True, finalizers=[])), settings)
    yield "queued and suspended", plan_of(WAITING, base=queued_job(suspend=True))
    yield "queued and suspended, finalizer gone", plan_of(workload(finalizers=[]), base=queued_job(suspend=True))


def admitted() -> Iterator[tuple[str, Plan]]:
    earlier = workload(admitted=True, base=replace(queued_job(), generation=2))
    yield "admitted", plan_of(ADMITTED, phase="Queued")
    yield "admitted, a field of a newer API", plan_of(ADMITTED, base=replace(queued_job(), unread="spec.new: unknown"))
    yield "admitted, a spec that cannot be read", plan_of(ADMITTED, base=replace(queued_job(), read=None, problem="x"))
    yield "admitted, its flavor is unknown", decide(replace(seen(ADMITTED), cluster_wide={}))
    yield "admitted, a check contradicts its template", plan_of(zoned(), phase="Queued")
    yield "admitted, and finished for a contradiction", plan_of(failed_to_start(), phase="Queued")
    yield "admitted, its pods start", plan_of(ADMITTED, cluster=ray_cluster(1, provisioned=False), pods=PODS[:2])
    yield "admitted and running", plan_of(ADMITTED, **living())
    yield "admitted and running, Kueue knows", plan_of(READY, **living())
    yield (
        "admitted and running beside a lost worker",
        plan_of(READY, **living(cluster=ray_cluster(1), head=reports(heartbeat=1))),
    )
    yield "admitted, Kueue is removed", plan_of(missing=OF_KUEUE, **living())
    yield "admitted for an earlier spec", plan_of(earlier, base=queued_job(cluster={"nodes": 3}))
    made = attempted("Submitted")  # its RayCluster is gone
    yield (
        "admitted for an earlier spec, reward models run",
        plan_of(earlier, base=queued_job(cluster={"nodes": 3}), **made),
    )
    over = ended(0, "Completed")
    yield "admitted and done", plan_of(READY, **over)
    yield "done, without pods", plan_of(READY, **DONE)
    known = workload(told("Finished", "Succeeded"), admitted=True)
    yield "done, Kueue knows", plan_of(known, **DONE)
    yield "deleted, without pods", plan_of(READY, base=replace(queued_job(), deleted=NOW))


def evictions() -> Iterator[tuple[str, Plan]]:
    yield "evicted while it runs", plan_of(evicted(), **living() | TRAINED)
    urgent = Ref(RLJOB, "team", "urgent", "88")
    yield "evicted for a job of its namespace", decide(replace(seen(evicted(), **living()), preemptor=urgent))
    yield "evicted, the driver saves", plan_of(evicted(), **asked() | evicted_before(), seconds=5)
    yield "evicted, too late", plan_of(evicted(), **asked() | evicted_before(), seconds=1000)
    over = attempted("Ended", phase="Suspending") | evicted_before()
    yield "evicted, pods are ending", plan_of(evicted(), pods=PODS, **over)
    yield "evicted, nothing runs", plan_of(evicted(), **over)
    yield (
        "evicted, saved in time",
        plan_of(evicted(), **over | {"checkpoint": CheckpointStatus(step=25, path="p", time=NOW)}),
    )
    yield (
        "evicted, waits again",
        plan_of(
            workload(told("Evicted", "Preempted", PREEMPTED), told("QuotaReserved", "Pending", PREEMPTED, holds=False)),
            **attempted("Ended", phase="Queued") | evicted_before(lost_steps=5),
        ),
    )
    yield (
        "evicted, admitted again",
        plan_of(ADMITTED, **attempted("Ended", phase="Queued") | evicted_before(lost_steps=5)),
    )
    yield (
        "evicted before it began",
        plan_of(evicted("PodsReadyTimeout", "Exceeded the PodsReady timeout"), phase="Queued"),
    )
    yield "evicted, then done", plan_of(evicted(), **ended(0, "Completed"))
    yield "evicted after its end, with pods", plan_of(
        evicted(), base=queued_job(ttlAfterFinished="1h"), pods=PODS, cluster=ray_cluster(),
        **DONE,
    )  # fmt: skip
    for reason in ("AdmissionCheck", "ClusterQueueStopped", "LocalQueueStopped", "NodeFailures", "DeactivatedDueToX"):
        yield f"evicted: {reason}", plan_of(evicted(reason, "m"), **living())
    yield "evicted: active is false", plan_of(workload(admitted=True, active=False), **living())
    yield "its Workload is gone while it runs", plan_of(**living() | TRAINED)
    yield "its Workload is being deleted", plan_of(workload(admitted=True, deletionTimestamp=stamp(NOW)), **living())
    yield (
        "its Workload is being deleted, nothing runs",
        plan_of(workload(admitted=True, deletionTimestamp=stamp(NOW)), **over),
    )
    yield "its Workload lost its quota", plan_of(WAITING, **living())


def elsewhere() -> Iterator[tuple[str, Plan]]:
    """Of the cluster that sends the job away."""
    base = queued_job(managedBy=names.MULTIKUEUE)
    for name, found in {"new": None, "waits for a cluster": WAITING, "has a cluster": ADMITTED}.items():
        yield f"of MultiKueue, {name}", plan_of(found, base=base)
    yield "of MultiKueue, without a queue", plan_of(base=queued_job(None, managedBy=names.MULTIKUEUE))
    yield "of MultiKueue, evicted, its copy runs", plan_of(evicted(), base=base, phase="Running")
    yield "of MultiKueue, evicted, its copy is lost", plan_of(evicted(), base=base, phase="Running", seconds=181)
    yield "of MultiKueue, evicted, its copy has stopped", plan_of(evicted(), base=base, phase="Queued")
    yield "of MultiKueue, done", plan_of(workload(told("Finished", "Succeeded"), admitted=True), base=base, **DONE)
    paused = queued_job(managedBy=names.MULTIKUEUE, suspend=True)
    yield "of MultiKueue, suspended", plan_of(ADMITTED, base=paused, **attempted("Submitted", phase="Running"))
    yield "of MultiKueue, suspended, without a copy", plan_of(base=paused, **attempted("Submitted", phase="Suspending"))
    yield "of MultiKueue, deleted", plan_of(ADMITTED, base=replace(base, deleted=NOW), phase="Running")


def copies() -> Iterator[tuple[str, Plan]]:
    """Of the cluster that gets the job."""
    base = replace(queued_job(), prebuilt=NAME)
    bare = {"metadata": {name: each for name, each in ADMITTED["metadata"].items() if name != "ownerReferences"}}
    yield "a copy, its Workload is not there yet", plan_of(base=base)
    yield "a copy, its Workload has no owner", plan_of(ADMITTED | bare, base=base)
    yield "a copy, its Workload waits", plan_of(WAITING, base=replace(base, priority_class="none", generation=2))
    yield "a copy, admitted", plan_of(ADMITTED, base=base)


GROUPS = (in_queue, admitted, evictions, elsewhere, copies)
