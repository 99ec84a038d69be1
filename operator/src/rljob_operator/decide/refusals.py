"""What the status says if a plan could not be carried out, and what is left of the plan."""

from dataclasses import replace
from datetime import datetime

from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import RLJobStatus
from rljob_api.v1alpha1.status import Phase
from rljob_operator.decide.events import events
from rljob_operator.decide.status import as_it_was, next_status
from rljob_operator.job import Job
from rljob_operator.kube.errors import AlreadyExists, Invalid, KubeError, NotFound, Unavailable
from rljob_operator.observe.facts import Facts
from rljob_operator.plan import Plan, Step
from rljob_operator.render.sources import quoted


def refused(facts: Facts, plan: Plan, error: KubeError) -> Plan:
    """The API server refuses an object of the job, or fails at it for long. What is invalid stays so; a quota may not.

    What needs no object is done without it: a stop, a restart's decision, an end. What runs goes on. If the job gets no
    further before the object is accepted, again_in is None.
    """
    job = facts.job
    phase: Phase = (plan.status or job.status).phase if job.deleted is None else "Deleting"
    if plan.submit is None and not plan.create and _goes_on(job.status, plan):
        again_in = plan.again_in if plan.status is None else 0.0
        return Plan(
            stop=plan.stop, end=plan.end, status=plan.status, events=plan.events, restart=plan.restart,
            again_in=again_in,
        )  # fmt: skip
    if job.status.completion_time is not None:
        return Plan()  # how it ended stands
    reason, message = _refusal(job, error)
    if reason is not Reason.OBJECT_INVALID or job.has_begun or job.deleted is not None:
        return _reported(facts, Step(phase, reason, message))
    failed = _reported(facts, Step("Failed", reason, message, {"completion_time": facts.now}))
    return replace(failed, again_in=0.0)  # what was created is deleted


def _goes_on(before: RLJobStatus, plan: Plan) -> bool:
    """Whether the plan changes more than messages."""
    after = plan.status or before
    moved = any(getattr(after, each) != getattr(before, each) for each in ("phase", "attempt", "driver", "recovery"))
    return plan.stop or plan.end is not None or moved


def _refusal(job: Job, error: KubeError) -> tuple[Reason, str]:
    if isinstance(error, AlreadyExists):
        return Reason.NAME_TAKEN, error.message
    if isinstance(error, NotFound | Unavailable):  # its message need not name what was asked
        return Reason.OBJECT_FAILING, f"The API server fails to {error.asked}: {error.message}"
    message = f"The API server refuses to {error.asked}: {quoted(job, error.message)}"
    if not isinstance(error, Invalid):
        return Reason.OBJECT_FORBIDDEN, message
    if "ownerReferences" in error.message:  # those of an earlier job of this name
        return Reason.WAITING_FOR_REMOVAL, message
    return Reason.OBJECT_INVALID, message


def not_taken(facts: Facts, plan: Plan, why: str) -> Plan:
    """Ray does not accept the driver, or the request to end it. The request is repeated."""
    if plan.submit is None:
        message = f"Ending the driver failed; retrying: {why}"
        return _reported(facts, Step("Recovering", Reason.DRIVER_NOT_HEARD, message))
    phase: Phase = "Recovering" if facts.job.status.phase == "Recovering" else "Starting"
    message = f"Submitting the driver to Ray failed; retrying: {why}"
    return _reported(facts, Step(phase, Reason.STARTING_DRIVER, message))


def broken(job: Job, now: datetime, error: Exception) -> Plan:
    """The operator's own code raises. The new status rests on the old one alone: anything else may not be readable."""
    message = f"The operator has a bug that this job triggers. Report it: {type(error).__name__}: {error}"
    status = as_it_was(job, now, Reason.OPERATOR_ERROR, message)
    return Plan(status=status, events=events(job.status, status)) if status != job.status else Plan()


def _reported(facts: Facts, step: Step) -> Plan:
    """The step's status alone, if it differs."""
    before, status = facts.job.status, next_status(facts, step)
    return Plan(status=status, events=events(before, status)) if status != before else Plan()
