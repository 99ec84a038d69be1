"""Gates of attempts that have ended: well, by a failure, with their cluster, or by silence."""

from dataclasses import replace
from typing import Any

from rljob_api.conditions import Reason
from rljob_api.contract import ExitCode
from rljob_api.recovery import Component
from rljob_api.v1alpha1.recovery import RecoveryRule
from rljob_operator.decide.judging import ANOTHER_CLUSTER, another_cluster, judge, judge_driver, over
from rljob_operator.decide.stopping import is_overdue
from rljob_operator.observe.driver import DriverState
from rljob_operator.observe.facts import Facts
from rljob_operator.plan import Step
from rljob_operator.settings import Settings

_UNCHARGED = RecoveryRule(on_reasons=[Reason.RAY_LOST], action="restart_uncharged")
"""Applies after the job's own rules."""


def finished(facts: Facts, _settings: Settings) -> Step | None:
    """The driver has done all steps that it knew of, perhaps while it was being stopped."""
    driver, record = facts.driver, facts.driver.record
    if record is None or record.code != ExitCode.DONE:
        return None
    began_with = driver.status.steps if driver.status is not None else None
    steps = facts.job.spec.training.steps
    if began_with is not None and steps is not None and began_with < steps:
        return _more_steps(facts, began_with, steps)
    message = record.message or "The run is finished"
    return Step("Succeeded", Reason.COMPLETED, message, over(facts) | {"completion_time": facts.now})


def _more_steps(facts: Facts, began_with: int, steps: int) -> Step | None:
    end = facts.driver.lingers
    if facts.job.unread is not None:  # another attempt would read the older spec, and be done at once
        if facts.job.spec.suspend or is_overdue(facts):
            return None
        return Step("Recovering", Reason.SPEC_NOT_READABLE, facts.job.unread, end=end)
    message = f"The driver has done the {began_with} steps that it began with; the spec now asks for {steps}"
    return Step("Recovering", Reason.MORE_STEPS, message, over(facts), again_in=0.0, end=end)


def ended(facts: Facts, _settings: Settings) -> Step | None:
    """The last attempt has ended, by itself or with its cluster."""
    driver, record = facts.driver, facts.driver.record
    if driver.state is DriverState.LOST:
        return _went_with_its_cluster(facts)
    if driver.state is not DriverState.ENDED or record is None:
        return None
    if record.code == ExitCode.STOPPED:
        step = _stopped(facts, "The driver saved a checkpoint and stopped on request")
    else:
        step = judge_driver(facts, record)
    return replace(step, end=driver.lingers) if step.phase == "Recovering" else step


def _went_with_its_cluster(facts: Facts) -> Step:
    """Its own record counts here too, but only another cluster helps."""
    driver, record = facts.driver, facts.driver.record
    stop_requested = driver.status is not None and driver.status.stop_requested is not None
    if stop_requested or (record is not None and record.code == ExitCode.STOPPED):
        return _stopped(facts, "The RayCluster went after the driver had been asked to stop")
    if record is not None:
        return judge_driver(facts, record, ANOTHER_CLUSTER)
    return judge(facts, Component.RAY, Reason.RAY_LOST, driver.lost or "")


def _stopped(facts: Facts, message: str) -> Step:
    """An eviction requested it, or spec.suspend, which is false again: the next attempt is free of charge."""
    changes: dict[str, Any] = over(facts)
    if facts.cluster.head_leaves or facts.cluster.head_lost is not None:
        changes |= another_cluster(facts)
    return Step("Recovering", Reason.STOPPED_ON_REQUEST, message, changes, again_in=0.0)


def unread(facts: Facts, settings: Settings) -> Step | None:
    """A driver has ended, and how is unknown yet."""
    if facts.driver.state is not DriverState.UNREAD:
        return None
    message = "The driver exited. Its exit record is unavailable because the agent does not respond"
    return Step("Recovering", Reason.DRIVER_NOT_HEARD, message, again_in=settings.poll_seconds)


def hung(facts: Facts, _settings: Settings) -> Step | None:
    """A driver that gives no sign of life, for example a frozen one, or after a while one that has not begun."""
    driver, silent = facts.driver, facts.seen.silent
    if driver.state is DriverState.OUT_OF_REACH:
        step = judge(facts, Component.RAY, Reason.RAY_LOST, f"{_out_of_reach(facts)} for {silent:.0f} s")
        # It may live. If no other cluster follows, the status keeps it, and `retirement` gives its cluster back.
        return replace(step, status=step.status | {"driver": driver.status}) if step.phase == "Failed" else step
    if driver.state is not DriverState.HUNG or driver.status is None:
        return None
    message = f"the driver gave no sign of life for {silent:.0f} s and is being ended"
    return replace(judge(facts, Component.DRIVER, Reason.DRIVER_HUNG, message), end=driver.status.submission_id)


def _out_of_reach(facts: Facts) -> str:
    if facts.seen.head is not None:
        return "Ray's head has not ended the driver, which gave no sign of life"
    return "Ray's head has " + ("refused the operator's token" if facts.seen.unauthorized else "not answered")


def never_up(facts: Facts, _settings: Settings) -> Step | None:
    """A cluster lost its head while no driver ran on it.

    If not all of its workers are known to have been ready, it costs only a wait: a quota may refuse some for days.
    """
    recovery, why = facts.job.status.recovery, facts.cluster.head_lost
    rebuilt = recovery.action == "rebuild_cluster" and recovery.cluster_uid == facts.seen.cluster_uid
    if rebuilt or facts.driver.is_open or why is None:
        return None
    rules = () if facts.cluster.had_all_workers else (_UNCHARGED,)
    return judge(facts, Component.RAY, Reason.RAY_LOST, f"Ray's head: {why}", rules)
