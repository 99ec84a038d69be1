"""The gate of jobs with a queue: nothing of them runs without Kueue's admission.

         create the Workload       quota                    Kueue evicts, or the Workload goes
no pods ────────────────────> Queued ───> the job runs ──────────────────────────────────────────┐
                                ^                                                                │
                                └── quota released <── zero pods <── checkpoint and stop <───────┘
                                                                     (stopping.py)
"""

from typing import Any

from rljob_api.conditions import Aspect, Reason
from rljob_operator import names
from rljob_operator.decide.ending import is_idle, replaced
from rljob_operator.decide.judging import over, settled
from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.decide.starting import unmergeable
from rljob_operator.kube.kinds import WORKLOAD_PRIORITY_CLASS, Key, Manifest
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.nodes import excluded
from rljob_operator.observe.snapshot import annotation, controller_of, is_deleting
from rljob_operator.observe.workload import WorkloadState
from rljob_operator.plan import Patch, Step
from rljob_operator.render import CannotMerge, UnknownFlavor, placements, spec_digest, workload_of
from rljob_operator.render.placement import avoiding
from rljob_operator.render.workload import adopted, prioritized, released, reported, updated
from rljob_operator.settings import Settings

LOOK_SECONDS = 1.0
"""Between two looks at a Workload that is on its way out."""

_BY_KUEUE = (
    Aspect.PREEMPTED,
    Aspect.PODS_READY_TIMEOUT,
    Aspect.ADMISSION_CHECK,
    Aspect.CLUSTER_QUEUE_STOPPED,
    Aspect.LOCAL_QUEUE_STOPPED,
    Aspect.NODE_FAILURES,
    Aspect.DEACTIVATED,
)
_FREE = (WorkloadState.NOT_QUEUED, WorkloadState.NO_KUEUE, WorkloadState.NEEDLESS)
"""States in which pods need no quota, or cannot have any."""


def has_quota(facts: Facts) -> bool:
    """Whether Kueue has admitted the job, with the present spec."""
    return facts.workload.state is WorkloadState.ADMITTED and not _is_outdated(facts) and not _is_misplaced(facts)


def _is_outdated(facts: Facts) -> bool:
    """A user may suspend, change and resume a job before its Workload is gone."""
    job, found = facts.job, facts.workload.found
    if job.unread is not None or annotation(found, names.GENERATION_ANNOTATION) == f"{job.generation}":
        return False
    return annotation(found, names.SPEC_ANNOTATION) not in (None, spec_digest(job.written))


def _is_misplaced(facts: Facts) -> bool:
    """Whether Kueue chose the nodes of the worker pods before one was excluded: it chooses again only for new quota."""
    found, nodes = facts.workload.found, [each.name for each in facts.job.status.excluded_nodes]
    assigned = facts.workload.admission.get("podSetAssignments", ())
    chosen = any(each["name"] == names.TRAINER_GROUP and each.get("topologyAssignment") for each in assigned)
    if found is None or not nodes or not chosen:
        return False
    asked: Manifest = next(each["template"] for each in found["spec"]["podSets"] if each["name"] == names.TRAINER_GROUP)
    return avoiding(asked, nodes) != asked


def taken_away(facts: Facts) -> tuple[Reason, str] | None:
    """Why what runs has to stop: it has no quota any more. None if it needs none, has it, or nothing runs here."""
    work = facts.workload
    if work.state in _FREE or has_quota(facts) or facts.job.manager == names.MULTIKUEUE:
        return None
    if is_idle(facts) and work.state is not WorkloadState.EVICTED:
        return None
    if work.state is WorkloadState.ADMITTED and _is_misplaced(facts):
        newest = facts.job.status.excluded_nodes[-1].name
        return Reason.NODES_EXCLUDED, f"The Workload's topology assignment is older than the exclusion of node {newest}"
    if work.state is WorkloadState.ADMITTED:
        return Reason.SPEC_CHANGED, "The Workload was admitted for an earlier spec"
    return Reason.EVICTED, _why(facts)


def _why(facts: Facts) -> str:
    work, name = facts.workload, facts.job.workload
    if work.state is WorkloadState.EVICTED:
        return f"Kueue evicted the job: {work.message or 'its Workload was deactivated'}"
    if work.state in (WorkloadState.DELETING, WorkloadState.ABSENT):
        return f"Workload {name} was deleted"
    return f"Workload {name} lost its quota"


def eviction_reason(facts: Facts) -> str:
    """Kueue's own word, if it is known."""
    work = facts.workload
    if work.state is not WorkloadState.EVICTED:
        return Aspect.WORKLOAD_LOST
    return next((each for each in _BY_KUEUE if work.reason.startswith(each)), Aspect.DEACTIVATED)


def requeued(facts: Facts, reason: Reason, why: str) -> Step:
    """Nothing runs any more: Kueue gets the quota back. The next attempt is free of charge."""
    changes = over(facts) | {"recovery": settled(facts.job.status.recovery), "start_time": None}
    why = f"{why}; its pods have ended"
    reason = Reason.EVICTED if reason is Reason.EVICTED else Reason.QUEUED
    if facts.workload.state is WorkloadState.EVICTED and facts.workload.found is not None:
        freed: dict[str, Any] = {"patch": released(facts.workload.found, facts.now)}
    else:
        freed = replaced(facts)
    return Step("Queued", reason, why, changes, again_in=LOOK_SECONDS, **freed)


def queueing(facts: Facts, settings: Settings) -> Step | None:
    """Where the job waits in its queue."""
    state = facts.workload.state
    if facts.job.unread is not None and state is not WorkloadState.NOT_QUEUED and is_idle(facts):
        return Step("Queued", Reason.SPEC_NOT_READABLE, facts.job.unread, again_in=WAIT_SECONDS, **replaced(facts))
    if (found := facts.workload.found) is not None and controller_of(found) is None and not is_deleting(found):
        message = f"Workload {facts.job.workload} of MultiKueue is taken over"
        return Step("Queued", Reason.QUEUED, message, patch=adopted(found, facts.job))
    if has_quota(facts):
        return _unplaced(facts)
    if state is WorkloadState.NOT_QUEUED or not is_idle(facts):
        return None
    return in_queue(facts, settings)


def in_queue(facts: Facts, settings: Settings) -> Step | None:
    """What a job without quota does. None if it may not be asked for."""
    state = facts.workload.state
    if state is WorkloadState.NO_KUEUE:
        message = (
            f"The label {names.QUEUE_LABEL} names LocalQueue {facts.job.queue}, and the operator cannot read"
            " workloads of kueue.x-k8s.io/v1beta2. Install Kueue and set kueue.enabled in the operator's chart, or"
            " remove the label"
        )
        return Step("Pending", Reason.KUEUE_MISSING, message, again_in=WAIT_SECONDS)
    if state not in (WorkloadState.ABSENT, WorkloadState.WAITING):
        message = "The Workload is replaced" if facts.job.queue else "The Workload is deleted"
        return Step("Queued", Reason.QUEUED, message, again_in=LOOK_SECONDS, **replaced(facts))
    if facts.job.prebuilt is not None:
        return _of_multikueue(facts)
    return _asked(facts, settings)


def _of_multikueue(facts: Facts) -> Step:
    """Kueue alone creates and changes the Workload of a copy."""
    if (found := facts.workload.found) is not None:
        return _waiting(facts, found, ())
    message = f"Waiting for Workload {facts.job.workload}, which MultiKueue creates"
    return Step("Queued", Reason.QUEUED, message, again_in=WAIT_SECONDS)


def _asked(facts: Facts, settings: Settings) -> Step | None:
    job, found = facts.job, facts.workload.found
    queue, image = job.queue or facts.workload.queue, job.spec.cluster.image or settings.trainer_image
    if image is None or queue is None:
        return None  # an earlier gate says what is missing
    priority = _priority(facts)
    if priority is None:
        message = (
            f"The label {names.PRIORITY_LABEL} names WorkloadPriorityClass {job.priority_class}, which does not exist"
        )
        return Step("Queued" if found else "Pending", Reason.PRIORITY_CLASS_MISSING, message, again_in=WAIT_SECONDS)
    try:
        wanted = workload_of(job, queue, image, settings, priority)
    except CannotMerge as error:
        return unmergeable(facts, error)
    if found is None:
        return Step("Queued", Reason.QUEUED, f"Waiting for LocalQueue {queue}", create=(wanted,), again_in=LOOK_SECONDS)
    # Without quota it follows the job: another queue, another priority, more servers.
    return _waiting(facts, found, () if facts.workload.admission else updated(found, wanted))


def _waiting(facts: Facts, found: Manifest, patch: tuple[Patch, ...]) -> Step:
    work = facts.workload
    said = work.message or "Kueue has not reported on the Workload; check that it runs"
    if work.is_active:
        avoided = f"; {words}" if (words := excluded(facts.job)) else ""
        return Step("Queued", Reason.QUEUED, f"LocalQueue {work.queue}: {said}{avoided}", patch=patch)
    name = found["metadata"]["name"]
    message = f"Workload {name} is deactivated: {said}. Set its spec.active to true to queue the job again"
    return Step("Queued", Reason.DEACTIVATED, message, patch=patch)


def _priority(facts: Facts) -> int | None:
    """None if the job's WorkloadPriorityClass does not exist."""
    name = facts.job.priority_class
    if name is None:
        return 0
    found = facts.seen.cluster_wide.get(WORKLOAD_PRIORITY_CLASS, {}).get(Key("", name))
    return None if found is None else int(found.get("value", 0))


def _unplaced(facts: Facts) -> Step | None:
    """The watch of a ResourceFlavor may be late. What runs already has its place."""
    if facts.workload.found is None or facts.cluster.exists:
        return None
    try:
        placements(facts.workload.found, facts.seen.flavors)
    except UnknownFlavor as error:
        return Step("Queued", Reason.QUEUED, f"{error}", again_in=WAIT_SECONDS)
    return None


def upkeep(facts: Facts, step: Step) -> tuple[Patch, ...]:
    """What Kueue has to know of an admitted job, beside what a gate decided."""
    job, found = facts.job, facts.workload.found
    if found is None or job.problem is not None or step.phase not in ("Starting", "Running", "Recovering"):
        return ()
    if not has_quota(facts):
        return ()
    priority = _priority(facts)
    if (
        job.priority_class is not None
        and job.prebuilt is None
        and priority is not None
        and (patch := prioritized(found, job.priority_class, priority))
    ):
        return patch
    ready = facts.cluster.is_ready and not facts.servers.missing
    return reported(found, facts.now, ready=ready, reclaimable=_reclaimable(facts, found))


def _reclaimable(facts: Facts, found: Manifest) -> dict[str, int]:
    """Pods that the job does not need, by group, since Kueue admitted it: of a reward model that got fewer replicas, or
    worker pods that the batch cannot use. They have ended.
    """
    spec, counts = facts.job.spec, facts.workload.counts
    needed = {names.TRAINER_GROUP: max(spec.cluster.nodes, len(facts.seen.pods_of(names.WORKER)))}
    for model in spec.rewards.served:
        needed[names.reward_group(model.name)] = max(model.replicas, len(facts.seen.servers_of(model.name)))
    back = {each["name"]: int(each["count"]) for each in found["status"].get("reclaimablePods", ())}
    for each in found["spec"]["podSets"]:
        name, whole = each["name"], int(each["count"])
        if (least := needed.get(name, whole)) < counts.get(name, 0):
            back[name] = whole - least
    return back
