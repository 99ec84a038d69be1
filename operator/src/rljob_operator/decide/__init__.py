"""From a snapshot to a plan: pure, so every case is a row of a test.

The gates are asked in order, and the first that answers decides: what it does not let through does not concern the
gates behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import RLJobStatus
from rljob_api.v1alpha1.status import Phase
from rljob_operator import names
from rljob_operator.decide.ending import deletion, leftovers, others_finalizers, retirement, unreadable
from rljob_operator.decide.failing import ended, finished, hung, never_up, unread
from rljob_operator.decide.fields import by_fields
from rljob_operator.decide.images import unusable
from rljob_operator.decide.leaving import leaving
from rljob_operator.decide.serving import served
from rljob_operator.decide.starting import (
    attempt,
    backoff,
    pending,
    ray_cluster,
    replacement,
    reward_models,
    running,
    submission,
    unheard,
)
from rljob_operator.decide.status import as_it_was, events, kept_back, next_status
from rljob_operator.decide.step import Step
from rljob_operator.decide.stopping import deadline_left, stopping
from rljob_operator.job import Job
from rljob_operator.kube.errors import AlreadyExists, Invalid, KubeError, NotFound, Unavailable
from rljob_operator.kube.kinds import POD, RAY_CLUSTER, VOLUME_CLAIM, Manifest, Ref
from rljob_operator.observe.snapshot import Snapshot, is_deleting, lost_pods, spent_pods, until_lost
from rljob_operator.plan import CHARGED, OTHER, Plan
from rljob_operator.render import lasting_children
from rljob_operator.settings import Settings

__all__ = ["broken", "decide", "foreign", "is_looked_after", "not_taken", "refused", "unfound"]

Gate = Callable[[Snapshot, Settings], Step | None]

GATES: Final[tuple[Gate, ...]] = (
    deletion,
    retirement,
    unreadable,
    leftovers,
    finished,
    stopping,
    unusable,
    ended,
    unread,
    hung,
    leaving,
    never_up,
    replacement,
    backoff,
    ray_cluster,
    reward_models,
    attempt,
    submission,
    unheard,
    pending,
)


def decide(snapshot: Snapshot, settings: Settings) -> Plan:
    """What to do for this job now. Asked again with what it brought about, it asks for nothing."""
    job = snapshot.job
    if not is_looked_after(job, settings):
        return Plan()
    step = next((found for gate in GATES if (found := gate(snapshot, settings))), None) or running(snapshot, settings)
    step = served(snapshot, settings, step)
    if step.finalizer is False and (names.FINALIZER in job.finalizers or not others_finalizers(job)):
        # Who keeps the job is said afterwards: no watch tells us again what we have written ourselves.
        return Plan(finalizer=False, delete=step.delete, again_in=0.0 if others_finalizers(job) else None)
    status = next_status(snapshot, step).model_copy(update={"operator": settings.operator_namespace})
    changed = status != job.status
    later = kept_back(snapshot, status, settings) if changed else 0.0
    told = changed and not later
    applied = _applied(job, settings, step, trains=status.phase == "Running")
    if job.status.checkpoint is not None and status.checkpoint is None:  # told first: another volume would hide it
        applied = tuple(each for each in applied if each["kind"] != VOLUME_CLAIM.name)
    return Plan(
        finalizer=True if job.deleted is None and names.FINALIZER not in job.finalizers else None,
        delete=step.delete,
        force=_forced(snapshot),
        hurry=tuple(map(Ref.of, spent_pods(snapshot, going=any(ref.kind == RAY_CLUSTER for ref in step.delete)))),
        apply=applied,
        create=step.create,
        label=_unlabelled(snapshot, step, applied),
        secret=step.secret,
        submit=step.submit,
        stop=step.stop,
        end=step.end,
        status=status if told else None,
        events=events(job.status, status) if told else (),
        restart=_charged(step, job.status, status),
        again_in=_earliest(step.again_in, later or None, _until_deadline(snapshot), until_lost(snapshot)),
    )


def _applied(job: Job, settings: Settings, step: Step, *, trains: bool) -> tuple[Manifest, ...]:
    if not step.deployed or job.unread is not None:
        return ()
    return (*lasting_children(job, settings, trains=trains), *step.apply)


def _unlabelled(snapshot: Snapshot, step: Step, applied: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """Without our label no watch tells of them. What is applied gets it thereby; a pod we may not change."""
    elsewhere = {(ref.kind, ref.key) for ref in (*map(Ref.of, applied), *step.delete)}
    strays = [(Ref.of(each), each) for each in snapshot.strays if not is_deleting(each)]
    return tuple(each for ref, each in strays if ref.kind != POD and (ref.kind, ref.key) not in elsewhere)


def is_looked_after(job: Job, settings: Settings) -> bool:
    """By this operator."""
    return job.manager in names.OUR_MANAGERS and not foreign(job, settings)


def foreign(job: Job, settings: Settings) -> bool:
    """Whether another release's operator looks after the job. The first to write its status does: two would take its
    cluster for one of an older key each, and build it anew in turns.
    """
    return job.status.operator not in (None, settings.operator_namespace)


def _earliest(*seconds: float | None) -> float | None:
    return min((each for each in seconds if each is not None), default=None)


def _until_deadline(snapshot: Snapshot) -> float | None:
    """Nobody tells that a deadline has passed, whatever the job waits for. Once it has, `stopping` sets the pace."""
    left = deadline_left(snapshot) if snapshot.job.status.completion_time is None else None
    return left if left is not None and left > 0 else None


def _charged(step: Step, before: RLJobStatus, after: RLJobStatus) -> str | None:
    """Why a restart is charged."""
    if after.restarts == before.restarts:
        return None
    return step.reason if step.reason in CHARGED else OTHER


def _goes_on(before: RLJobStatus, plan: Plan) -> bool:
    """Whether the plan changes more than what the status says."""
    after = plan.status or before
    moved = any(getattr(after, each) != getattr(before, each) for each in ("phase", "attempt", "driver", "recovery"))
    return plan.stop or plan.end is not None or moved


def _forced(snapshot: Snapshot) -> tuple[Ref, ...]:
    job = snapshot.job
    allowed = job.problem is None and job.spec.recovery.force_delete_lost_pods
    return tuple(map(Ref.of, lost_pods(snapshot))) if allowed else ()


def refused(snapshot: Snapshot, plan: Plan, error: KubeError) -> Plan:
    """What to do when the API server refuses an object of the job's, or fails at it for long. What is invalid stays so;
    a quota may not.

    What needs no object is done without it: a stop, a restart's decision, an end; and what runs already goes on. Where
    the job gets no further before the object is taken, again_in is None.
    """
    job = snapshot.job
    phase: Phase = (plan.status or job.status).phase if job.deleted is None else "Deleting"
    if plan.submit is None and not plan.create and _goes_on(job.status, plan):
        again_in = plan.again_in if plan.status is None else 0.0
        return Plan(
            stop=plan.stop, end=plan.end, status=plan.status, events=plan.events, restart=plan.restart,
            again_in=again_in,
        )  # fmt: skip
    if job.status.completion_time is not None:
        return Plan()  # how it ended stands
    reason, message = _refusal(job, plan, error)
    if reason is not Reason.OBJECT_INVALID or job.has_begun or job.deleted is not None:
        return _said(snapshot, Step(phase, reason, message))
    failed = _said(snapshot, Step("Failed", reason, message, {"completion_time": snapshot.now}))
    return replace(failed, again_in=0.0)  # what was made is deleted


def _refusal(job: Job, plan: Plan, error: KubeError) -> tuple[Reason, str]:
    if isinstance(error, AlreadyExists):
        return Reason.NAME_TAKEN, error.message
    if isinstance(error, NotFound | Unavailable):  # whose words need not name what was asked
        return Reason.OBJECT_FAILING, f"the API server fails at it: {error.asked}: {error.message}"
    message = f"the API server refuses it: {by_fields(job, error.message, (*plan.create, *plan.apply))}"
    if not isinstance(error, Invalid):
        return Reason.OBJECT_FORBIDDEN, message
    if "ownerReferences" in error.message:  # those of an earlier job of this name
        return Reason.WAITING_FOR_REMOVAL, message
    return Reason.OBJECT_INVALID, message


def unfound(snapshot: Snapshot, error: KubeError) -> Plan:
    """What to say where nobody can tell whether an object that no watch tells of is there. The status stays as it was:
    what it knows of that object is why it is looked for.
    """
    before = snapshot.job.status
    if before.completion_time is not None:
        return Plan()
    status = as_it_was(snapshot, *_refusal(snapshot.job, Plan(), error), stalled=False)
    return Plan(status=status, events=events(before, status)) if status != before else Plan()


def not_taken(snapshot: Snapshot, plan: Plan, why: str) -> Plan:
    """What to say when Ray does not take the driver, or that it is to end. It is asked again."""
    if plan.submit is None:
        message = f"the driver is to be ended, and Ray does not take that: {why}"
        return _said(snapshot, Step("Recovering", Reason.DRIVER_NOT_HEARD, message))
    phase: Phase = "Recovering" if snapshot.job.status.phase == "Recovering" else "Starting"
    message = f"Ray does not take the driver, and is asked again: {why}"
    return _said(snapshot, Step(phase, Reason.STARTING_DRIVER, message))


def broken(snapshot: Snapshot, error: Exception) -> Plan:
    """What to say where our own code raises. It rests on the status alone: nobody knows what else can be read."""
    before = snapshot.job.status
    words = f"{type(error).__name__}: {error}"
    message = f"the operator's own code fails at this job: {words}: this is a bug of the operator: please report it"
    status = as_it_was(snapshot, Reason.OPERATOR_ERROR, message, stalled=True)
    return Plan(status=status, events=events(before, status)) if status != before else Plan()


def _said(snapshot: Snapshot, step: Step) -> Plan:
    """The step's status alone, where it is another one."""
    before, status = snapshot.job.status, next_status(snapshot, step)
    return Plan(status=status, events=events(before, status)) if status != before else Plan()
