"""A failure goes to the recovery policy, and its decision into the status, so that any operator continues from there.

Failure ──decide_recovery──> restart_driver    the next attempt starts once the cluster is ready
                             replace_pods      the worker pods are deleted first; KubeRay creates others
                             rebuild_cluster   the RayCluster is deleted first
                             give_up           the job has failed
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from rljob_api.conditions import Reason
from rljob_api.contract import ExitRecord
from rljob_api.recovery import OPERATOR_LEVELS, Action, Component, Decision, Failure, History, Level, decide_recovery
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_api.v1alpha1.base import REASON_PATTERN
from rljob_api.v1alpha1.recovery import RecoveryRule
from rljob_operator import names
from rljob_operator.decide.preflight import excluded_nodes
from rljob_operator.job import Job
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.snapshot import made_at
from rljob_operator.plan import MESSAGE, Step

ANOTHER_CLUSTER = frozenset({Level.CLUSTER})

_ACTIONS = (Action.RESTART_DRIVER, Action.REPLACE_PODS, Action.REBUILD_CLUSTER)


def judge_driver(facts: Facts, record: ExitRecord, levels: frozenset[Level] = OPERATOR_LEVELS) -> Step:
    """The driver ended with this record."""
    reason = record.reason if re.fullmatch(REASON_PATTERN, record.reason) else Reason.DRIVER_LOST
    failure = Failure(Component.DRIVER, reason, record.message, record.code, durable_step=facts.durable_step)
    return _judge(facts, failure, record.field, levels)


def judge(facts: Facts, component: Component, reason: Reason, message: str, rules: Sequence[RecoveryRule] = ()) -> Step:
    """The operator itself found the failure. rules: in addition to the job's own."""
    failure = Failure(component, reason, message, durable_step=facts.durable_step)
    return _judge(facts, failure, None, OPERATOR_LEVELS, rules)


def failed(facts: Facts, reason: str, message: str, changes: dict[str, Any] | None = None) -> Step:
    """This is final. A job whose driver may live does not come here, unless its driver cannot be reached."""
    return Step("Failed", reason, message, (changes or {}) | {"completion_time": facts.now})


def over(facts: Facts) -> dict[str, Any]:
    """Changes of the status: the attempt has ended."""
    driver = facts.driver.status
    return {} if driver is None else {"driver": driver.model_copy(update={"state": "Ended"})}


def another_cluster(facts: Facts) -> dict[str, Any]:
    """Changes of the status: the RayCluster is replaced, free of charge. A wait that has begun goes on."""
    change = {"action": "rebuild_cluster", "cluster_uid": facts.seen.cluster_uid}
    return {"recovery": facts.job.status.recovery.model_copy(update=change)}


def settled(recovery: RecoveryStatus) -> RecoveryStatus:
    """The counts of restarts, and nothing under way."""
    return RecoveryStatus(
        durable_step=recovery.durable_step, charged=recovery.charged, bugs=recovery.bugs, cures=recovery.cures
    )


def _judge(
    facts: Facts, failure: Failure, field: str | None, levels: frozenset[Level], rules: Sequence[RecoveryRule] = ()
) -> Step:
    """field: of the job, that the driver blames."""
    status, policy = facts.job.status, facts.job.spec.recovery
    before = _history(status.recovery)
    policy = policy.model_copy(update={"failure_rules": [*policy.failure_rules, *rules]})
    decision = decide_recovery(failure, before, policy, levels)
    if decision.action not in _ACTIONS:
        message = _sentence(decision.message) if field is None else f"{field}: {decision.message}"
        if decision.action is Action.ACCEPT:  # a driver that was fenced
            message += f". {_used_volume(facts.job)} ({failure.message})"
        return failed(facts, decision.reason, message, over(facts))
    recovery = _remembered(facts, before, failure, decision)
    changes = over(facts) | {"recovery": recovery, "restarts": status.restarts + decision.charged}
    changes |= excluded_nodes(facts)
    return Step("Recovering", decision.reason, _sentence(decision.message), changes, again_in=decision.delay)


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _history(recovery: RecoveryStatus) -> History:
    cures = {Level[name.upper()]: times for name, times in recovery.cures.items()}
    return History(recovery.durable_step, recovery.charged, recovery.bugs, cures)


def _remembered(facts: Facts, before: History, failure: Failure, decision: Decision) -> RecoveryStatus:
    """What is done about the failure, and the history with it."""
    after, driver = before.after(failure, decision), facts.driver
    cluster = driver.status.cluster_uid if driver.is_open and driver.status is not None else facts.seen.cluster_uid
    return RecoveryStatus.model_validate(
        {
            "durable_step": after.durable_step,
            "charged": after.charged,
            "bugs": after.bugs,
            "cures": {level.name.lower(): times for level, times in after.cures.items()},
            "action": str(decision.action),
            "reason": decision.reason,
            "message": f"{failure}"[:MESSAGE],
            "decided": facts.now,
            "not_before": facts.now + timedelta(seconds=decision.delay),
            "newest_pod": _newest_pod(facts) if decision.action is Action.REPLACE_PODS else None,
            "cluster_uid": cluster,
        }
    )


def _newest_pod(facts: Facts) -> datetime | None:
    """When the newest pod that a driver could run on was made. One that has not started replaces a lost one."""
    started = [pod for pod in facts.seen.ray_pods if pod.get("status", {}).get("phase") != "Pending"]
    return max(map(made_at, started), default=None)


def _used_volume(job: Job) -> str:
    """Where the driver met another one, and what to do about it."""
    volume = job.spec.checkpoint.volume
    claim = volume.existing_claim or names.claim(job.name)
    place = f"PersistentVolumeClaim {claim}" + (f", subPath {volume.sub_path}," if volume.sub_path else "")
    return (
        f"{place} holds files of another run. Create an RLJob with another name, or with another existingClaim or"
        " subPath in spec.checkpoint.volume; or delete the claim first if its content is not needed"
    )
