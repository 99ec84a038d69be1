"""The gate of jobs that should not run now: suspended, past their deadline, or on the RayCluster of an older spec.

ask the driver for a checkpoint ──> it ends, or evictionGracePeriod passes ──> delete what has pods ──> wait for them
  └──> it is wanted again before, and still runs: it was not asked
"""

from datetime import datetime
from typing import Any

from rljob_api import parse_duration
from rljob_api.conditions import Reason
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator import names
from rljob_operator.decide.ending import reward_models, what_runs
from rljob_operator.decide.silence import is_silent
from rljob_operator.decide.step import Step
from rljob_operator.head import tokens
from rljob_operator.observe.cluster import head_leaves, lives, lost_head, pods_left
from rljob_operator.observe.snapshot import Snapshot, is_deleting
from rljob_operator.render import spec_digest
from rljob_operator.settings import Settings

STOP_POLL_SECONDS = 1.0


def stopping(snapshot: Snapshot, settings: Settings) -> Step | None:
    spec = snapshot.job.spec
    if spec.suspend:
        return _stop(snapshot, Reason.SUSPENDED, "spec.suspend is true")
    if _is_outdated(snapshot):
        return _stop(snapshot, Reason.SPEC_CHANGED, "the RayCluster was made for the spec as it was before")
    if _annotation(snapshot, names.KEY_ANNOTATION) not in (None, tokens.fingerprint(settings.key)):
        return _renew(snapshot, "the RayCluster was made with another key of the operator's")
    if is_overdue(snapshot):
        return _stop(snapshot, Reason.DEADLINE_EXCEEDED, f"spec.activeDeadline of {spec.active_deadline} has passed")
    return _give_up(snapshot)


def deadline_left(snapshot: Snapshot) -> float | None:
    """Seconds until spec.activeDeadline; None where none counts."""
    job, since = snapshot.job, snapshot.job.status.start_time
    if job.problem is not None or job.spec.active_deadline is None or since is None:
        return None
    return parse_duration(job.spec.active_deadline) - (snapshot.now - since).total_seconds()


def is_overdue(snapshot: Snapshot) -> bool:
    """Whether spec.activeDeadline has passed."""
    left = deadline_left(snapshot)
    return left is not None and left <= 0


def _is_outdated(snapshot: Snapshot) -> bool:
    """Whoever suspends, changes and resumes a job at once does all of it before its RayCluster is gone.

    Of a spec with fields that only a newer operator knows nobody can tell. A newer version may read the same spec
    otherwise, as where a default has changed: so a cluster of this very generation is none.
    """
    job, made_for = snapshot.job, _annotation(snapshot, names.SPEC_ANNOTATION)
    if job.unread is not None or _annotation(snapshot, names.GENERATION_ANNOTATION) == f"{job.generation}":
        return False
    return made_for not in (None, spec_digest(job.spec))


def _annotation(snapshot: Snapshot, name: str) -> str | None:
    """Of the RayCluster."""
    found: str | None = (snapshot.cluster or {}).get("metadata", {}).get("annotations", {}).get(name)
    return found


def _renew(snapshot: Snapshot, why: str) -> Step:
    """Its head does not take our tokens, so the driver cannot be asked; its pods have it save a checkpoint as they end.
    That it was asked is said first: then the next attempt is free of charge.
    """
    driver = snapshot.job.status.driver
    if driver is not None and driver.state != "Ended" and driver.stop_requested is None:
        changes = {"driver": driver.model_copy(update={"stop_requested": snapshot.now})}
        return Step("Suspending", Reason.KEY_CHANGED, f"{why}: its pods are asked to end", changes, again_in=0.0)
    return _give_back(snapshot, Reason.KEY_CHANGED, f"{why}: waiting for {pods_left(snapshot)} to end")


def _stop(snapshot: Snapshot, reason: str, why: str) -> Step:
    driver = snapshot.job.status.driver
    if snapshot.cluster is None and not snapshot.pods and not list(reward_models(snapshot)):
        return _stopped(snapshot, reason, why)
    live = lives(snapshot)
    asked = driver.stop_requested if driver is not None else None
    if driver is not None and live and asked is None and _has_ended(snapshot):
        # The status says so before the cluster goes: a job that is resumed meanwhile has lost nothing.
        changes = {"driver": driver.model_copy(update={"state": "Ended"})}
        return Step("Suspending", reason, f"{why}: the driver has ended", changes, again_in=0.0)
    if driver is None or not live or _has_ended(snapshot):
        return _give_back(snapshot, reason, f"{why}: waiting for {pods_left(snapshot)} to end")
    message = f"{why}: the driver is asked for a checkpoint"
    if asked is None:
        # The grace period begins, whoever hears of it: an agent that does not answer holds nobody up.
        changes = {"driver": driver.model_copy(update={"stop_requested": snapshot.now})}
        return Step("Suspending", reason, message, changes, again_in=0.0)
    left = grace_left(snapshot, asked)
    if left <= 0:
        return _give_back(snapshot, reason, f"{why}: the driver did not stop within recovery.evictionGracePeriod")
    return Step("Suspending", reason, message, stop=True, again_in=min(left, STOP_POLL_SECONDS))


def _give_up(snapshot: Snapshot) -> Step | None:
    """A driver that has not stopped in time loses its cluster, also where the job is wanted again by then: its deletion
    may be under way, and no watch has told. That it had been asked stays said, so the next attempt is free of charge.
    One whose head pod leaves is no case of this gate, and neither is a RayCluster that goes already.
    """
    driver = snapshot.job.status.driver
    if driver is None or driver.stop_requested is None or not lives(snapshot) or _has_ended(snapshot):
        return None
    if head_leaves(snapshot) or is_deleting(snapshot.cluster or {}) or grace_left(snapshot, driver.stop_requested) > 0:
        return None
    why = "the driver did not stop within recovery.evictionGracePeriod, so the job goes on in a new RayCluster"
    return _give_back(snapshot, Reason.SPEC_CHANGED, f"{why}: waiting for {pods_left(snapshot)} to end")


def _stopped(snapshot: Snapshot, reason: str, why: str) -> Step:
    """Nothing runs any more. What failed before is forgotten, the budget's count too: the next start is a fresh one."""
    status = snapshot.job.status
    changes: dict[str, Any] = {"recovery": RecoveryStatus()}
    if status.driver is not None:
        changes["driver"] = status.driver.model_copy(update={"state": "Ended"})
    if reason == Reason.SUSPENDED:
        # As Kubernetes' Jobs have it: the deadline begins anew, for who waits in a queue must not fail for it.
        return Step("Suspended", reason, why, changes | {"start_time": None}, deployed=False)
    return Step("Failed", reason, why, changes | {"completion_time": snapshot.now}, deployed=False)


def _give_back(snapshot: Snapshot, reason: str, message: str) -> Step:
    return Step("Suspending", reason, message, delete=tuple(what_runs(snapshot)), again_in=STOP_POLL_SECONDS)


def _has_ended(snapshot: Snapshot) -> bool:
    """Also with its head. One that leaves has a driver yet, which saves what it can."""
    head = snapshot.head
    if head is not None and (head.driver is None or head.driver.state.is_final):
        return True
    if head is not None and head.exit is not None and is_silent(snapshot):  # and its process hangs
        return True
    return lost_head(snapshot) is not None and not head_leaves(snapshot)


def grace_left(snapshot: Snapshot, asked: datetime) -> float:
    """Seconds that a driver has yet, which was asked to stop then."""
    grace = parse_duration(snapshot.job.spec.recovery.eviction_grace_period)
    return grace - (snapshot.now - asked).total_seconds()
