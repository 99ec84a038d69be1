"""From facts to a plan: pure, so every case is a row of a test.

The gates are asked in order, and the first that answers decides: later ones see only what earlier ones let through.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rljob_api.v1alpha1 import RLJobStatus
from rljob_operator import names
from rljob_operator.decide.dispatching import dispatching
from rljob_operator.decide.ending import deletion, leftovers, others_finalizers, quota_back, retirement, unreadable
from rljob_operator.decide.events import events
from rljob_operator.decide.failing import ended, finished, hung, never_up, unread
from rljob_operator.decide.ganging import ganged, pod_group_leaves, scheduler_missing
from rljob_operator.decide.images import unusable
from rljob_operator.decide.leaving import leaving
from rljob_operator.decide.queueing import queue_name, queueing
from rljob_operator.decide.recovering import backoff, replacement
from rljob_operator.decide.refusals import broken, not_taken, refused
from rljob_operator.decide.running import pending, running, unheard
from rljob_operator.decide.serving import served
from rljob_operator.decide.starting import attempt, ray_cluster, reward_models, submission, unstartable
from rljob_operator.decide.status import kept_back, next_status
from rljob_operator.decide.stopping import deadline_left, stopping
from rljob_operator.decide.upkeep import upkeep
from rljob_operator.job import Job
from rljob_operator.kube.kinds import RAY_CLUSTER, VOLUME_CLAIM, Manifest, Ref
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.leaving import lost_pods, spent_pods, until_lost
from rljob_operator.plan import CHARGED, OTHER, Plan, Step
from rljob_operator.render import lasting_children
from rljob_operator.settings import Settings

__all__ = ["broken", "decide", "foreign", "not_taken", "quota_back", "refused"]

Gate = Callable[[Facts, Settings], Step | None]

GATES: Final[tuple[Gate, ...]] = (
    deletion,
    retirement,
    unreadable,
    leftovers,
    finished,
    stopping,
    unstartable,
    scheduler_missing,
    queue_name,
    queueing,
    unusable,
    ended,
    unread,
    hung,
    leaving,
    never_up,
    replacement,
    backoff,
    pod_group_leaves,
    ray_cluster,
    reward_models,
    attempt,
    submission,
    unheard,
    pending,
)


def decide(facts: Facts, settings: Settings) -> Plan:
    """What to do for this job now. Asked again after that was done, it asks for nothing."""
    job = facts.job
    if job.manager == names.MULTIKUEUE and (job.queue is not None or facts.workload.found is not None):
        sent = dispatching(facts, settings)
        return sent if isinstance(sent, Plan) else _planned(facts, settings, replace(sent, deployed=False))
    if job.manager not in names.OUR_MANAGERS or foreign(job, settings):
        return Plan()
    step = next((found for gate in GATES if (found := gate(facts, settings))), None) or running(facts, settings)
    return _planned(facts, settings, ganged(facts, settings, served(facts, settings, step)))


def _planned(facts: Facts, settings: Settings, step: Step) -> Plan:
    """The step, with what the status says then, and what its time is."""
    job = facts.job
    if step.finalizer is False and (names.FINALIZER in job.finalizers or not others_finalizers(job)):
        # The status names other finalizers afterwards: no watch reports the operator's own write again.
        return Plan(finalizer=False, delete=step.delete, again_in=0.0 if others_finalizers(job) else None)
    status = next_status(facts, step).model_copy(update={"operator": settings.operator_namespace})
    changed = status != job.status
    later = kept_back(facts, status, settings) if changed else 0.0
    written = changed and not later
    times = (step.again_in, later or None, _until_deadline(facts), until_lost(facts.seen))
    cluster_goes = any(ref.kind == RAY_CLUSTER for ref in step.delete)
    return Plan(
        finalizer=True if job.deleted is None and names.FINALIZER not in job.finalizers else None,
        delete=step.delete,
        patch=step.patch or (() if step.create else upkeep(facts, step)),  # children first
        force=_forced(facts),
        short_grace=tuple(map(Ref.of, spent_pods(facts.seen, cluster_goes=cluster_goes))),
        apply=_applied(facts, settings, step, status),
        create=step.create,
        secret=step.secret,
        submit=step.submit,
        stop=step.stop,
        end=step.end,
        status=status if written else None,
        events=events(job.status, status) if written else (),
        restart=_charged(step, job.status, status),
        again_in=min((each for each in times if each is not None), default=None),
    )


def foreign(job: Job, settings: Settings) -> bool:
    """Whether another release's operator manages the job. The first to write its status does: two operators would take
    its cluster for one of an older key each, and rebuild it in turns.
    """
    return job.status.operator not in (None, settings.operator_namespace)


def _applied(facts: Facts, settings: Settings, step: Step, status: RLJobStatus) -> tuple[Manifest, ...]:
    job = facts.job
    if not step.deployed or job.unread is not None:
        return ()
    applied = (*lasting_children(job, settings, trains=status.phase == "Running"), *step.apply)
    # The status reports a lost checkpoint first: a new volume would hide the loss. A queued job needs no storage
    # yet, and a volume that is bound before Kueue chooses a flavor could be in a zone without such nodes.
    lost = job.status.checkpoint is not None and status.checkpoint is None
    early = status.phase == "Queued" and not facts.seen.children.get(VOLUME_CLAIM)
    return tuple(each for each in applied if not ((lost or early) and each["kind"] == VOLUME_CLAIM.name))


def _until_deadline(facts: Facts) -> float | None:
    """No watch reports that a deadline has passed. Once it has, `stopping` sets the pace."""
    left = deadline_left(facts) if facts.job.status.completion_time is None else None
    return left if left is not None and left > 0 else None


def _charged(step: Step, before: RLJobStatus, after: RLJobStatus) -> str | None:
    """Why a restart is charged."""
    if after.restarts == before.restarts:
        return None
    return step.reason if step.reason in CHARGED else OTHER


def _forced(facts: Facts) -> tuple[Ref, ...]:
    job = facts.job
    allowed = job.problem is None and job.spec.recovery.force_delete_lost_pods
    return tuple(map(Ref.of, lost_pods(facts.seen))) if allowed else ()
