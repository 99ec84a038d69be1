"""Gates of attempts that have ended: well, by a failure that the recovery policy judges, or with their cluster.

Failure ──decide_recovery──> restart_driver    the next attempt starts once the cluster is ready
                             replace_pods      the worker pods are deleted first; KubeRay makes others
                             rebuild_cluster   the RayCluster is deleted first
                             give_up           the job has failed
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rljob_api.conditions import Reason
from rljob_api.contract import REASONS, ExitCode, ExitRecord, last_words
from rljob_api.recovery import Action, Component, Failure, Level, decide_recovery
from rljob_api.v1alpha1 import DriverStatus
from rljob_api.v1alpha1.base import REASON_PATTERN
from rljob_api.v1alpha1.recovery import RecoveryRule
from rljob_operator import names
from rljob_operator.decide.leaving import another_cluster
from rljob_operator.decide.memory import history, remembered
from rljob_operator.decide.silence import UNHEARD_SECONDS, is_deaf, is_silent, lingering
from rljob_operator.decide.step import MESSAGE, Step
from rljob_operator.decide.stopping import is_overdue
from rljob_operator.head import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job
from rljob_operator.observe.cluster import had_all_workers, head_is_ready, head_leaves, lost_head
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.settings import Settings

RECORD_SECONDS = 60.0
"""How long an agent may not answer for the record of a driver that has ended, as where its volume is slow."""

LEVELS = frozenset({Level.DRIVER, Level.PODS, Level.CLUSTER})
"""Without a queue there is nothing to go back to."""

_ANOTHER_CLUSTER = frozenset({Level.CLUSTER})

_UNCHARGED = RecoveryRule(on_reasons=[Reason.RAY_LOST], action="restart_uncharged")
"""After the user's own rules, as all that the policy has by itself."""


def finished(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """The driver has done all the steps it knew of, perhaps while it was being stopped."""
    driver, record = snapshot.job.status.driver, _last_word(snapshot)
    if driver is None or driver.state == "Ended" or record is None or record.code != ExitCode.DONE:
        return None
    steps = snapshot.job.spec.training.steps
    if driver.steps is not None and driver.steps < steps:
        end = lingering(snapshot)
        if snapshot.job.unread is not None:  # another attempt would read the older spec, and be done at once
            if snapshot.job.spec.suspend or is_overdue(snapshot):
                return None
            return Step("Recovering", Reason.SPEC_NOT_READABLE, snapshot.job.unread, end=end)
        changes = {"driver": driver.model_copy(update={"state": "Ended"})}
        message = f"the driver has done the {driver.steps} steps that it began with; {steps} are wanted now"
        return Step("Recovering", Reason.MORE_STEPS, message, changes, again_in=0.0, end=end)
    return _succeeded(snapshot, driver, record)


def ended(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """The last attempt has ended, by itself or because its cluster is gone."""
    driver = snapshot.job.status.driver
    if driver is None or driver.state == "Ended":
        return None
    if (why := _lost_cluster(snapshot, driver)) is not None:
        return _went_with_its_cluster(snapshot, driver, why)
    record = _last_word(snapshot)
    if record is None:
        return None
    if record.code == ExitCode.STOPPED:
        step = _stopped(snapshot, driver, "the driver saved a checkpoint and stopped because it was asked to")
    else:
        step = _judge_driver(snapshot, driver, record, LEVELS)
    return replace(step, end=lingering(snapshot)) if step.phase == "Recovering" else step


def unread(snapshot: Snapshot, settings: Settings) -> Step | None:
    """A driver that has ended, and nobody knows how yet."""
    if not _is_unread(snapshot):
        return None
    message = "Ray says that the driver has ended; how, the agent beside Ray's head knows, which does not answer"
    return Step("Recovering", Reason.DRIVER_NOT_HEARD, message, again_in=settings.poll_seconds)


def hung(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """A driver that is there and gives no sign of life, as one that is frozen; after a while also one that has not
    begun.

    Where its node finds the head pod in order and we alone do not reach it, or are refused, a network is cut or a
    policy is wrong, and a restart would mend nothing: it would end every job that trains behind that network.
    """
    driver, head, silent = snapshot.job.status.driver, snapshot.head, snapshot.silent
    if driver is None or driver.state == "Ended" or not is_silent(snapshot):
        return None
    if (head is None or head.heartbeat is None) and silent <= UNHEARD_SECONDS:
        return None
    deaf = head is None or (head.heartbeat is None and not head.agent)
    if deaf and head_is_ready(snapshot):
        return None
    if head is None or is_deaf(snapshot):
        why = f"{_deafness(snapshot)} for {silent:.0f} s"
        step = _judge(snapshot, driver, Failure(Component.RAY, Reason.RAY_LOST, why, durable_step=_durable(snapshot)))
        # It may live. Where no other cluster follows, the status says so on, and `retirement` gives that one back.
        return replace(step, status=step.status | {"driver": driver}) if step.phase == "Failed" else step
    message = f"the driver gave no sign of life for {silent:.0f} s and is ended"
    failure = Failure(Component.DRIVER, Reason.DRIVER_HUNG, message, durable_step=_durable(snapshot))
    return replace(_judge(snapshot, driver, failure), end=driver.submission_id)


def _deafness(snapshot: Snapshot) -> str:
    if snapshot.head is not None:
        return "Ray's head has not ended the driver, which gave no sign of life"
    return "Ray's head has " + ("refused the operator's token" if snapshot.unauthorized else "not answered")


def never_up(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """A cluster that was up and has lost its head while no driver was there to be lost with it.

    One whose workers are not all known to have been there costs nothing but a wait: a quota may refuse some for days.
    """
    driver = snapshot.job.status.driver
    recovery = snapshot.job.status.recovery
    rebuilt = recovery.action == "rebuild_cluster" and recovery.cluster_uid == snapshot.cluster_uid
    if rebuilt or (driver is not None and driver.state != "Ended"):
        return None
    why = lost_head(snapshot)
    if why is None:
        return None
    failure = Failure(Component.RAY, Reason.RAY_LOST, f"Ray's head: {why}", durable_step=_durable(snapshot))
    return _judge(snapshot, driver, failure, rules=() if had_all_workers(snapshot) else (_UNCHARGED,))


def _lost_cluster(snapshot: Snapshot, driver: DriverStatus) -> str | None:
    if snapshot.cluster is None:
        return "the RayCluster is gone"
    if snapshot.cluster_uid != driver.cluster_uid:
        return "the RayCluster is another one"
    if (how := lost_head(snapshot)) is not None:
        return f"Ray's head: {how}"
    head = snapshot.head
    if head is not None and head.driver is None and (driver.state == "Submitted" or head.begun):
        return "Ray does not know the driver: its head was restarted"
    return None


def _went_with_its_cluster(snapshot: Snapshot, driver: DriverStatus, why: str) -> Step:
    """What its own record says counts there too; but only another cluster cures it."""
    record = _record(snapshot.head)
    if driver.stop_requested is not None or (record is not None and record.code == ExitCode.STOPPED):
        return _stopped(snapshot, driver, "the driver had been asked to stop when its cluster went")
    if record is not None:
        return _judge_driver(snapshot, driver, record, _ANOTHER_CLUSTER)
    return _judge(snapshot, driver, Failure(Component.RAY, Reason.RAY_LOST, why, durable_step=_durable(snapshot)))


def _record(head: HeadReport | None) -> ExitRecord | None:
    """The volume keeps it, also where Ray has forgotten the driver."""
    return None if head is None else head.exit


def _last_word(snapshot: Snapshot) -> ExitRecord | None:
    """How the driver ended: by its record, or by what Ray knows of it where it left none. None while it may live, and
    while its record may yet be read. One that has fallen silent after its record lives no more, though its process may.
    """
    head = snapshot.head
    if head is None or head.driver is None:
        return _record(head)
    if not head.driver.state.is_final:
        return head.exit if is_silent(snapshot) and not is_deaf(snapshot) else None
    return None if _is_unread(snapshot) else head.exit or _record_without(head)


def _is_unread(snapshot: Snapshot) -> bool:
    """Whether a driver that has failed may have left a record that nobody could read yet."""
    driver, head = snapshot.job.status.driver, snapshot.head
    if driver is None or driver.state == "Ended" or head is None or head.driver is None or head.agent:
        return False
    return head.driver.state.is_final and not _is_done(head.driver) and snapshot.silent <= RECORD_SECONDS


def _is_done(driver: RayJob) -> bool:
    return driver.state is RayJobState.SUCCEEDED


def _record_without(head: HeadReport) -> ExitRecord:
    """What Ray knows of a driver that left no record. One that Ray itself could not start is no driver's failure."""
    driver = head.driver
    assert driver is not None
    if _is_done(driver):
        return ExitRecord(code=ExitCode.DONE, reason=Reason.COMPLETED, message="the driver ended with 0")
    code = ExitCode.INFRASTRUCTURE if driver.driver_exit_code is None else driver.driver_exit_code
    lines = driver.message.strip().splitlines()
    said = last_words(lines[-1]) if code in REASONS and lines else driver.message or driver.state
    return ExitRecord(
        code=code,
        reason=REASONS.get(code, Reason.DRIVER_LOST),
        message=f"the driver left no record: {said}"[:MESSAGE],
    )


def _succeeded(snapshot: Snapshot, driver: DriverStatus, record: ExitRecord) -> Step:
    changes = {"driver": driver.model_copy(update={"state": "Ended"}), "completion_time": snapshot.now}
    return Step("Succeeded", Reason.COMPLETED, record.message or "the run is finished", changes)


def _stopped(snapshot: Snapshot, driver: DriverStatus, message: str) -> Step:
    """An eviction asked it, or spec.suspend, which is false again: the next attempt is free of charge."""
    changes: dict[str, Any] = {"driver": driver.model_copy(update={"state": "Ended"})}
    if head_leaves(snapshot) or lost_head(snapshot) is not None:
        changes |= another_cluster(snapshot)
    return Step("Recovering", Reason.STOPPED_ON_REQUEST, message, changes, again_in=0.0)


def _judge_driver(snapshot: Snapshot, driver: DriverStatus, record: ExitRecord, levels: frozenset[Level]) -> Step:
    reason = record.reason if re.fullmatch(REASON_PATTERN, record.reason) else Reason.DRIVER_LOST  # no word of ours
    failure = Failure(Component.DRIVER, reason, record.message, record.code, durable_step=_durable(snapshot))
    return _judge(snapshot, driver, failure, record, levels)


def _judge(
    snapshot: Snapshot,
    driver: DriverStatus | None,
    failure: Failure,
    record: ExitRecord | None = None,
    levels: frozenset[Level] = LEVELS,
    rules: Sequence[RecoveryRule] = (),
) -> Step:
    """rules: more than the job's own."""
    status, policy = snapshot.job.status, snapshot.job.spec.recovery
    before = history(status.recovery)
    policy = policy.model_copy(update={"failure_rules": [*policy.failure_rules, *rules]})
    decision = decide_recovery(failure, before, policy, levels)
    over = {} if driver is None else {"driver": driver.model_copy(update={"state": "Ended"})}
    if decision.action not in _ACTIONS:
        message = decision.message if record is None or record.field is None else f"{record.field}: {decision.message}"
        if decision.action is Action.ACCEPT:  # of what comes here, a driver that was fenced
            message += f" {_used_volume(snapshot.job)} ({failure.message})"
        return failed(snapshot, decision.reason, message, over)
    where = driver.cluster_uid if driver is not None and driver.state != "Ended" else snapshot.cluster_uid
    recovery = remembered(before, failure, decision, snapshot, where)
    changes = over | {"recovery": recovery, "restarts": status.restarts + decision.charged}
    return Step("Recovering", decision.reason, decision.message, changes, again_in=decision.delay)


def _used_volume(job: Job) -> str:
    """Where the driver met another one, and what to do about it."""
    volume = job.spec.checkpoint.volume
    claim = volume.existing_claim or names.claim(job.name)
    place = f"PersistentVolumeClaim {claim}" + (f", subPath {volume.sub_path}" if volume.sub_path else "")
    return (
        f"{place}, which has files of another run: create a new RLJob with another name, or with another existingClaim"
        " or subPath in spec.checkpoint.volume; or delete the claim first, if nobody needs what is in it"
    )


_ACTIONS = (Action.RESTART_DRIVER, Action.REPLACE_PODS, Action.REBUILD_CLUSTER)


def failed(snapshot: Snapshot, reason: str, message: str, changes: dict[str, Any]) -> Step:
    """For ever. No driver lives then, but one that nobody could reach: what is wrong with a job that has begun does not
    end it beside its driver.
    """
    return Step("Failed", reason, message, changes | {"completion_time": snapshot.now})


def _durable(snapshot: Snapshot) -> int:
    known = [each.step for each in (snapshot.head and snapshot.head.checkpoint, snapshot.job.status.checkpoint) if each]
    return max(known, default=0)
