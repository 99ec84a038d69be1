"""What a job without quota asks Kueue for, and what speaks against the quota that it got. Nothing of the job runs yet.

no Workload ── create it ──> Kueue considers it ── the job's labels change: so does the Workload ──> quota
                                                    a pod template contradicts what Kueue sets: Workload Finished <──┘
"""

from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.ending import is_idle, replaced
from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.decide.starting import unmergeable
from rljob_operator.kube.kinds import WORKLOAD_PRIORITY_CLASS, Key, Manifest
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.nodes import excluded
from rljob_operator.observe.snapshot import made_at
from rljob_operator.observe.workload import WorkloadState
from rljob_operator.plan import Patch, Step
from rljob_operator.render import CannotMerge, UnknownFlavor, workload_of
from rljob_operator.render.placement import contradiction
from rljob_operator.render.workload import FAILED_TO_START, finished, prioritized, updated
from rljob_operator.settings import Settings

LOOK_SECONDS = 1.0
"""Between two looks at a Workload that is on its way out."""

SILENT_SECONDS = 10.0
"""How long Kueue may take to report on a new Workload, before the job's message asks whether it runs."""


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
    if state is WorkloadState.FINISHED and facts.workload.reason == FAILED_TO_START and _is_in_its_queue(facts):
        return Step("Queued", Reason.ADMISSION_CONFLICT, facts.workload.message)
    if state not in (WorkloadState.ABSENT, WorkloadState.WAITING):
        message = "The Workload is replaced" if facts.job.queue else "The Workload is deleted"
        return Step("Queued", Reason.QUEUED, message, again_in=LOOK_SECONDS, **replaced(facts))
    if facts.job.prebuilt is not None:
        return _of_multikueue(facts)
    return _asked(facts, settings)


def _is_in_its_queue(facts: Facts) -> bool:
    return facts.job.queue == facts.workload.queue


def _of_multikueue(facts: Facts) -> Step:
    """Kueue alone creates and changes the Workload of a copy."""
    if (found := facts.workload.found) is not None:
        return _waiting(facts, found, ())
    message = f"Waiting for Workload {facts.job.workload}, which MultiKueue creates"
    return Step("Queued", Reason.QUEUED, message, again_in=WAIT_SECONDS)


def reprioritized(facts: Facts, found: Manifest) -> tuple[Patch, ...]:
    """With quota, a Workload follows only the job's change from one WorkloadPriorityClass to another."""
    job, priority = facts.job, _priority(facts)
    if job.priority_class is None or job.prebuilt is not None or priority is None:
        return ()
    return prioritized(found, job.priority_class, priority)


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
    return _waiting(facts, found, reprioritized(facts, found) if facts.workload.admission else updated(found, wanted))


def _waiting(facts: Facts, found: Manifest, patch: tuple[Patch, ...]) -> Step:
    work = facts.workload
    left = SILENT_SECONDS - (facts.now - made_at(found)).total_seconds()
    if not work.message and left > 0:
        message = f"LocalQueue {work.queue}: waiting for Kueue to look at the Workload"
        return Step("Queued", Reason.QUEUED, message, patch=patch, again_in=left)
    said = work.message or "Kueue has not reported on the Workload; check that it runs"
    if not work.is_active:
        message = (
            f"Workload {found['metadata']['name']} is deactivated: {said}. To queue the job again, set spec.active of"
            " the Workload to true, or suspend and resume the job"
        )
        return Step("Queued", Reason.DEACTIVATED, message, patch=patch)
    if said == f"LocalQueue {work.queue} doesn't exist":
        message = (
            f"LocalQueue {work.queue} does not exist in namespace {facts.job.namespace}. Create it, or change the label"
            f" {names.QUEUE_LABEL} of the job"
        )
        return Step("Queued", Reason.QUEUE_MISSING, message, patch=patch)
    avoided = f"; {words}" if (words := excluded(facts.job)) else ""
    return Step("Queued", Reason.QUEUED, f"LocalQueue {work.queue}: {said}{avoided}", patch=patch)


def _priority(facts: Facts) -> int | None:
    """None if the job's WorkloadPriorityClass does not exist."""
    name = facts.job.priority_class
    if name is None:
        return 0
    found = facts.seen.cluster_wide.get(WORKLOAD_PRIORITY_CLASS, {}).get(Key("", name))
    return None if found is None else int(found.get("value", 0))


def unplaced(facts: Facts) -> Step | None:
    """No pod is created otherwise than the admission and its template say. What runs already has its place.

    The watch of a ResourceFlavor may be late.
    """
    found = facts.workload.found
    if found is None or facts.cluster.exists:
        return None
    try:
        why = contradiction(found, facts.seen.flavors)
    except UnknownFlavor as error:
        return Step("Queued", Reason.QUEUED, f"{error}", again_in=WAIT_SECONDS)
    if why is None or not is_idle(facts):
        return None
    message = f"{why}. Suspend the job, change its template, and resume it; or label it with another queue"
    # As Kueue does for kinds that it knows: the quota is free, and the job waits for a person.
    patch = finished(found, facts.now, FAILED_TO_START, message)
    return Step("Queued", Reason.ADMISSION_CONFLICT, message, patch=patch)
