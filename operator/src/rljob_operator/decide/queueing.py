"""The gate of jobs with a queue: nothing of them runs without Kueue's admission.

         create the Workload       quota                    Kueue evicts, or the Workload goes
no pods ────────────────────> Queued ───> the job runs ──────────────────────────────────────────┐
                                ^                                                                │
                                └── quota released <── zero pods <── checkpoint and stop <───────┘
                                                                     (stopping.py)
"""

import re
from typing import Any

from rljob_api.conditions import Aspect, Reason
from rljob_operator import names
from rljob_operator.decide.asking import LOOK_SECONDS, in_queue, unplaced
from rljob_operator.decide.ending import is_idle, replaced
from rljob_operator.decide.judging import over, settled
from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.snapshot import annotation, controller_of, is_deleting
from rljob_operator.observe.workload import WorkloadState
from rljob_operator.plan import Step
from rljob_operator.render import spec_digest
from rljob_operator.render.placement import avoiding
from rljob_operator.render.workload import adopted, released
from rljob_operator.settings import Settings

_LOCAL_QUEUE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""Names that a LocalQueue may have. A label may hold others: upper case, underscores."""

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


def queue_name(facts: Facts, _settings: Settings) -> Step | None:
    """A label that no LocalQueue can have as its name asks for no quota: the API server would refuse the Workload."""
    queue = facts.job.queue
    if queue is None or _LOCAL_QUEUE.fullmatch(queue) or has_quota(facts) or not is_idle(facts):
        return None
    message = (
        f"The label {names.QUEUE_LABEL} has the value {queue}, which is not a valid name of a LocalQueue: names consist"
        " of lower-case letters, digits, '-' and '.'. Change the label to the name of a LocalQueue of this namespace"
    )
    return Step("Pending", Reason.QUEUE_NAME_INVALID, message, again_in=WAIT_SECONDS, **replaced(facts))


def queueing(facts: Facts, settings: Settings) -> Step | None:
    """Where the job waits in its queue."""
    state = facts.workload.state
    if facts.job.unread is not None and state is not WorkloadState.NOT_QUEUED and is_idle(facts):
        return Step("Queued", Reason.SPEC_NOT_READABLE, facts.job.unread, again_in=WAIT_SECONDS, **replaced(facts))
    if (found := facts.workload.found) is not None and controller_of(found) is None and not is_deleting(found):
        message = f"Workload {facts.job.workload} of MultiKueue is taken over"
        return Step("Queued", Reason.QUEUED, message, patch=adopted(found, facts.job))
    if has_quota(facts):
        return unplaced(facts)
    if state is WorkloadState.NOT_QUEUED or not is_idle(facts):
        return None
    return in_queue(facts, settings)
