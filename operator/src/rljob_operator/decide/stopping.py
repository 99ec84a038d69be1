"""The gate of jobs that should not run now: suspended, evicted, past their deadline, or on the RayCluster of an older
spec.

ask the driver for a checkpoint ──> it ends, or evictionGracePeriod passes ──> delete what has pods ──> wait for them
  └──> the job is resumed before that, and the driver still runs: the request is withdrawn
"""

from datetime import datetime
from typing import Any

from rljob_api import parse_duration
from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator import names
from rljob_operator.decide.ending import nothing_runs, pods_left, replaced, what_runs
from rljob_operator.decide.ganging import is_too_large
from rljob_operator.decide.judging import over
from rljob_operator.decide.queueing import requeued, taken_away
from rljob_operator.head import tokens
from rljob_operator.observe.cluster import ClusterState
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.snapshot import annotation
from rljob_operator.plan import Step
from rljob_operator.render import spec_digest
from rljob_operator.settings import Settings

STOP_POLL_SECONDS = 1.0

_LATE = "did not stop within spec.recovery.evictionGracePeriod"


def stopping(facts: Facts, settings: Settings) -> Step | None:
    spec = facts.job.spec
    if spec.suspend:
        return _stop(facts, Reason.SUSPENDED, "spec.suspend is true")
    if (taken := taken_away(facts)) is not None:
        return _stop(facts, *taken)
    if (made := _outdated(facts, settings)) is not None:
        return _stop(facts, Reason.SPEC_CHANGED, made)
    if annotation(facts.seen.cluster, names.KEY_ANNOTATION) not in (None, tokens.fingerprint(settings.key)):
        return _renew(facts, "The RayCluster was created with another key of the operator")
    if is_overdue(facts):
        return _stop(facts, Reason.DEADLINE_EXCEEDED, f"spec.activeDeadline of {spec.active_deadline} has passed")
    return _give_up(facts)


def deadline_left(facts: Facts) -> float | None:
    """Seconds until spec.activeDeadline; None if there is none, or it has not begun."""
    job, since = facts.job, facts.job.status.start_time
    if job.problem is not None or job.spec.active_deadline is None or since is None:
        return None
    return parse_duration(job.spec.active_deadline) - (facts.now - since).total_seconds()


def is_overdue(facts: Facts) -> bool:
    """Whether spec.activeDeadline has passed."""
    left = deadline_left(facts)
    return left is not None and left <= 0


def _outdated(facts: Facts, settings: Settings) -> str | None:
    """What was created for an earlier spec and cannot follow this one."""
    if _is_outdated(facts):
        return "The RayCluster was created for an earlier spec"
    return "The PodGroup was created for more pods than the spec has" if is_too_large(facts, settings) else None


def _is_outdated(facts: Facts) -> bool:
    """A user may suspend, change and resume a job before its RayCluster is gone.

    False for a spec with fields that only a newer operator knows. A newer version may read the same spec differently,
    for example because a default has changed, so a cluster of this very generation is never outdated.
    """
    job, cluster = facts.job, facts.seen.cluster
    if job.unread is not None or annotation(cluster, names.GENERATION_ANNOTATION) == f"{job.generation}":
        return False
    return annotation(cluster, names.SPEC_ANNOTATION) not in (None, spec_digest(job.written))


def _renew(facts: Facts, why: str) -> Step:
    """The head refuses the operator's tokens, so the driver cannot be asked; its pods make it save a checkpoint when
    they end. The status says first that it was asked: then the next attempt is free of charge.
    """
    driver = facts.driver.status
    if facts.driver.is_open and driver is not None and driver.stop_requested is None:
        changes = {"driver": driver.model_copy(update={"stop_requested": facts.now})}
        return Step("Suspending", Reason.KEY_CHANGED, f"{why}; its pods are asked to end", changes, again_in=0.0)
    return _give_back(facts, Reason.KEY_CHANGED, f"{why}; waiting for {pods_left(facts.seen)} to end")


def _stop(facts: Facts, reason: Reason, why: str) -> Step:
    driver = facts.driver.status
    if nothing_runs(facts.seen):
        return _stopped(facts, reason, why)
    asked = driver.stop_requested if driver is not None else None
    if facts.lives and asked is None and facts.driver.over:
        # The status says so before the cluster goes: a job that is resumed meanwhile has lost nothing.
        return Step("Suspending", reason, f"{why}; the driver has ended", over(facts), again_in=0.0)
    if driver is None or not facts.lives or facts.driver.over:
        return _give_back(facts, reason, f"{why}; waiting for {pods_left(facts.seen)} to end")
    message = f"{why}; the driver is asked for a checkpoint"
    if asked is None:  # the grace period begins now, whether or not the agent answers
        changes = {"driver": driver.model_copy(update={"stop_requested": facts.now})}
        return Step("Suspending", reason, message, changes, again_in=0.0)
    left = grace_left(facts, asked)
    if left <= 0:
        return _give_back(facts, reason, f"{why}; the driver {_LATE}")
    return Step("Suspending", reason, message, stop=True, again_in=min(left, STOP_POLL_SECONDS))


def _give_up(facts: Facts) -> Step | None:
    """A driver that has not stopped in time loses its cluster even if the job was resumed meanwhile: the deletion may
    be under way, and its watch may be late. The status keeps that it was asked, so the next attempt is free of charge.

    A head pod that leaves and a RayCluster that is being deleted are handled elsewhere.
    """
    driver, cluster = facts.driver.status, facts.cluster
    if driver is None or driver.stop_requested is None or not facts.lives or facts.driver.over:
        return None
    goes = cluster.head_leaves or cluster.state is ClusterState.DELETING
    if goes or grace_left(facts, driver.stop_requested) > 0:
        return None
    message = f"The driver {_LATE}; waiting for {pods_left(facts.seen)} to end before a new RayCluster"
    return _give_back(facts, Reason.SPEC_CHANGED, message)


def _stopped(facts: Facts, reason: Reason, why: str) -> Step:
    """Nothing runs any more. Earlier failures and the budget's count are forgotten: the next start is a fresh one."""
    if reason in (Reason.EVICTED, Reason.SPEC_CHANGED, Reason.NODES_EXCLUDED):
        return requeued(facts, reason, why)
    changes: dict[str, Any] = over(facts) | {"recovery": RecoveryStatus()}
    if reason == Reason.SUSPENDED:  # as in Kubernetes' Jobs the deadline begins again: waiting in a queue is no failure
        changes |= {"start_time": None, "excluded_nodes": []}
        return Step("Suspended", reason, why, changes, deployed=False, **replaced(facts))
    return Step("Failed", reason, why, changes | {"completion_time": facts.now}, deployed=False)


def _give_back(facts: Facts, reason: str, message: str) -> Step:
    return Step("Suspending", reason, message, delete=tuple(what_runs(facts.seen)), again_in=STOP_POLL_SECONDS)


def grace_left(facts: Facts, asked: datetime) -> float:
    """Seconds left for a driver that was asked to stop then."""
    grace = parse_duration(facts.job.spec.recovery.eviction_grace_period)
    return grace - (facts.now - asked).total_seconds()
