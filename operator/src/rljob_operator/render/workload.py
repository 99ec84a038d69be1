"""The Workload: what a job asks of Kueue, as one gang, and the writes that its quota depends on.

Each write is a merge patch of the version that was seen. Server-side apply could not remove what Kueue itself has set.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import WORKLOAD, Manifest, Ref
from rljob_operator.plan import Patch
from rljob_operator.render.digest import digest
from rljob_operator.render.groups import Group
from rljob_operator.render.placement import Placement
from rljob_operator.render.ray_cluster import spec_digest

_TOPOLOGIES = ("required", "preferred", "unconstrained")
MESSAGE = 32_768
"""Characters of a condition's message, at most."""

_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Evictions after which the job may be admitted again at once. After others Kueue waits: for a backoff, or a person."""

_DEACTIVATED = "Deactivated"

FAILED_TO_START = "FailedToStart"
"""Kueue's reason for a Workload that is Finished because its pods cannot be what its admission says."""


def workload(job: Job, queue: str, pods: list[Group], priority: int) -> Manifest:
    """pods: the groups. Raises CannotMerge."""
    spec: dict[str, Any] = {"queueName": queue, "priority": priority, "podSets": [_pod_set(each) for each in pods]}
    if job.priority_class is not None:
        spec["priorityClassRef"] = priority_class(job.priority_class)
    annotations = _made_for(job)
    metadata = {
        "name": job.workload,
        "labels": {**names.labels(job.name), names.JOB_UID_LABEL: job.uid},
        "annotations": annotations | {names.DIGEST_ANNOTATION: digest([spec, annotations])},
        "finalizers": [names.WORKLOAD_FINALIZER],
    }
    return WORKLOAD.manifest(metadata, spec=spec)


def _made_for(job: Job) -> Manifest:
    """Annotations: the spec that the job has."""
    return {names.SPEC_ANNOTATION: spec_digest(job.written), names.GENERATION_ANNOTATION: f"{job.generation}"}


def priority_class(name: str) -> Manifest:
    return {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}


def _pod_set(group: Group) -> Manifest:
    template = group.template(Placement())
    pod_set: Manifest = {"name": group.name, "count": group.count, "template": template}
    if group.least is not None:
        pod_set["minCount"] = group.least
    if topology := _topology(template["metadata"].get("annotations") or {}):
        pod_set["topologyRequest"] = topology
    return pod_set


def _topology(annotations: Manifest) -> Manifest:
    """What the pod template asks of topology-aware scheduling; empty if it asks for nothing."""
    asked = {word: annotations.get(names.TOPOLOGY_ANNOTATION % word) for word in _TOPOLOGIES}
    given = {word: value for word, value in asked.items() if value is not None}
    return {word: value == "true" if word == "unconstrained" else value for word, value in given.items()}


def adopted(found: Manifest, job: Job) -> tuple[Patch, ...]:
    """A Workload that MultiKueue created becomes the job's. Its spec stays: Kueue compares it with the original's."""
    metadata = {
        "labels": {names.JOB_UID_LABEL: job.uid},
        "annotations": _made_for(job),
        "ownerReferences": [job.owner_reference],
        "finalizers": [*dict.fromkeys((*found["metadata"].get("finalizers", ()), names.WORKLOAD_FINALIZER))],
    }
    return (_patch(found, {"metadata": metadata}),)


def updated(found: Manifest, wanted: Manifest) -> tuple[Patch, ...]:
    """Without quota the spec may change. `active` belongs to Kueue and to people."""
    of_digest = names.DIGEST_ANNOTATION
    annotations = wanted["metadata"]["annotations"]
    if found["metadata"].get("annotations", {}).get(of_digest) == annotations[of_digest]:
        return ()
    spec = {"priorityClassRef": None, **wanted["spec"]}
    return (_patch(found, {"metadata": {"annotations": annotations}, "spec": spec}),)


def prioritized(found: Manifest, name: str, priority: int) -> tuple[Patch, ...]:
    """With quota only another WorkloadPriorityClass can take the place of one."""
    spec, ref = found["spec"], priority_class(name)
    before = spec.get("priorityClassRef", {})
    if before.get("group") != ref["group"] or (before.get("name"), spec.get("priority")) == (name, priority):
        return ()
    return (_patch(found, {"spec": {"priority": priority, "priorityClassRef": ref}}),)


def released(found: Manifest, now: datetime) -> tuple[Patch, ...]:
    """Kueue gets the quota of an evicted job back."""
    evicted = _conditions(found).get("Evicted", {})
    reason, message = evicted.get("reason", _DEACTIVATED), evicted.get("message", "The workload is deactivated")
    # Kueue writes DeactivatedDueToCAUSE, and takes a Workload back that is active again only with the bare word.
    reason = _DEACTIVATED if reason.startswith(_DEACTIVATED) else reason
    rows = [
        ("QuotaReserved", False, "Pending", message),
        ("Admitted", False, "NoReservation", "The workload has no reservation"),
        ("PodsReady", False, "WaitForStart", _NOT_READY),
        ("Requeued", reason in _REQUEUED_AT_ONCE, reason, message),
    ]
    return _freeing(_status(found, now, rows, admission=None, reclaimablePods=None))


_NOT_READY = "Not all pods are ready or succeeded"
_READY = "All pods reached readiness and the workload is running"


def reported(found: Manifest, now: datetime, *, ready: bool, reclaimable: dict[str, int]) -> tuple[Patch, ...]:
    """Whether all pods are ready, for Kueue's time-outs; and how many are not needed any more, by group."""
    before = _conditions(found).get("PodsReady", {})
    returned = before.get("reason") in ("WaitForRecovery", "Recovered")
    if ready:
        row = ("PodsReady", True, "Recovered" if returned else "Started", _READY)
    elif before.get("status") == "True" or returned:
        row = ("PodsReady", False, "WaitForRecovery", "At least one pod has failed, waiting for recovery")
    else:
        row = ("PodsReady", False, "WaitForStart", _NOT_READY)
    counts = [{"name": name, "count": count} for name, count in reclaimable.items()]
    changes = {} if counts == found["status"].get("reclaimablePods", []) else {"reclaimablePods": counts}
    if not changes and (before.get("status"), before.get("reason")) == (str(row[1]), row[2]):
        return ()
    return _status(found, now, [row], **changes)


def finished(found: Manifest, now: datetime, phase: str, message: str) -> tuple[Patch, ...]:
    """phase: Succeeded or Failed, or why it cannot start. Kueue takes the quota back."""
    if _conditions(found).get("Finished", {}).get("status") == "True":
        return ()
    return _freeing(_status(found, now, [("Finished", True, phase, message)]))


def unheld(found: Manifest) -> tuple[Patch, ...]:
    """Without the finalizer that keeps the quota until no pod needs it."""
    finalizers = found["metadata"].get("finalizers", ())
    if names.WORKLOAD_FINALIZER not in finalizers:
        return ()
    others = [each for each in finalizers if each != names.WORKLOAD_FINALIZER]
    return _freeing((_patch(found, {"metadata": {"finalizers": others}}),))


def _freeing(patches: tuple[Patch, ...]) -> tuple[Patch, ...]:
    return tuple(replace(each, frees=True) for each in patches)


Row = tuple[str, bool, str, str]
"""A condition: type, whether it holds, reason, message."""


def _status(found: Manifest, now: datetime, rows: list[Row], **changes: Any) -> tuple[Patch, ...]:
    conditions = _conditions(found)
    for kind, holds, reason, message in rows:
        before, word = conditions.get(kind, {}), "True" if holds else "False"
        since = before["lastTransitionTime"] if before.get("status") == word else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions[kind] = {
            "type": kind, "status": word, "reason": reason, "message": message[:MESSAGE], "lastTransitionTime": since,
            "observedGeneration": found["metadata"].get("generation", 0),
        }  # fmt: skip
    return (_patch(found, {"status": {"conditions": list(conditions.values()), **changes}}, "status"),)


def _conditions(found: Manifest) -> dict[str, Manifest]:
    """By type."""
    return {each["type"]: each for each in found.get("status", {}).get("conditions", ())}


def _patch(found: Manifest, change: Manifest, subresource: str | None = None) -> Patch:
    return Patch(Ref.of(found), found["metadata"]["resourceVersion"], change, subresource)
