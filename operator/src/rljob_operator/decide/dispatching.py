"""Jobs that MultiKueue runs in another cluster (spec.managedBy). This operator keeps the Workload, and starts nothing:

Workload ── Kueue creates a copy of the job in another cluster ──> Kueue copies its status here ──> Workload Finished

The status is the copy's from the admission on. Before it, and while the job is suspended, it is this operator's.
"""

from datetime import datetime

from rljob_api import parse_duration
from rljob_api.conditions import Reason
from rljob_operator.decide.asking import in_queue
from rljob_operator.decide.ending import deletion, replaced
from rljob_operator.decide.judging import over
from rljob_operator.decide.queueing import has_quota, queue_name
from rljob_operator.decide.serving import RUNS
from rljob_operator.decide.starting import unstartable
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.snapshot import condition_of
from rljob_operator.observe.workload import WorkloadState
from rljob_operator.plan import Plan, Step
from rljob_operator.render.workload import released, unheld
from rljob_operator.settings import Settings

LOOK_SECONDS = 5.0
LATE_SECONDS = 60.0
"""After evictionGracePeriod, for the pods' end and Kueue's copy of the status."""


def dispatching(facts: Facts, settings: Settings) -> Step | Plan:
    """A Plan where the status is the copy's."""
    job, state, found = facts.job, facts.workload.state, facts.workload.found
    if job.deleted is not None:
        return deletion(facts, settings) or Plan()
    if job.problem is not None or job.status.completion_time is not None or state is WorkloadState.FINISHED:
        return Plan(patch=() if found is None else unheld(found))
    if job.spec.suspend:
        return _suspended(facts)
    if state is WorkloadState.EVICTED:
        return _evicted(facts)
    if has_quota(facts):
        return Plan()
    return unstartable(facts, settings) or queue_name(facts, settings) or in_queue(facts, settings) or Plan()


def _suspended(facts: Facts) -> Step:
    """Without its Workload Kueue deletes the copy."""
    if facts.workload.found is not None:
        return Step("Suspending", Reason.SUSPENDED, "spec.suspend is true; its Workload is deleted", **replaced(facts))
    return Step("Suspended", Reason.SUSPENDED, "spec.suspend is true", over(facts) | {"start_time": None})


def _evicted(facts: Facts) -> Step | Plan:
    """Kueue deletes the copy once the quota is free, so the copy stops first; not one whose cluster is lost."""
    found, why = facts.workload.found, f"Kueue evicted the job: {facts.workload.message}"
    assert found is not None
    since = datetime.fromisoformat(condition_of(found, "Evicted").get("lastTransitionTime") or f"{facts.now}")
    seconds = parse_duration(facts.job.spec.recovery.eviction_grace_period) + LATE_SECONDS
    if facts.job.status.phase in (*RUNS, "Suspending") and (facts.now - since).total_seconds() < seconds:
        return Plan(again_in=LOOK_SECONDS)
    return Step("Queued", Reason.EVICTED, why, over(facts), patch=released(found, facts.now))
