"""From what was decided to what the status says. Conditions follow the phase, so they cannot contradict it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rljob_api import RLJobSpec
from rljob_api.conditions import CONDITIONS, Aspect, Reason
from rljob_api.printable import printable
from rljob_api.v1alpha1 import CheckpointStatus, Condition, RLJobStatus, WorkloadStatus
from rljob_operator import names
from rljob_operator.decide.ending import nothing_runs
from rljob_operator.decide.preflight import preflight_condition
from rljob_operator.decide.queueing import eviction_reason, has_quota, taken_away
from rljob_operator.job import Job
from rljob_operator.observe.facts import Facts, VolumeState
from rljob_operator.observe.servers import ServersState
from rljob_operator.plan import MESSAGE, Step
from rljob_operator.settings import Settings

_STALLED = (
    Reason.SPEC_NOT_READABLE,
    Reason.KUEUE_MISSING,
    Reason.GANG_SCHEDULER_MISSING,
    Reason.PRIORITY_CLASS_MISSING,
    Reason.QUEUE_NAME_INVALID,
    Reason.QUEUE_MISSING,
    Reason.ADMISSION_CONFLICT,
    Reason.DEACTIVATED,
    Reason.IMAGE_MISSING,
    Reason.NAMESPACE_REFUSED,
    Reason.NAME_TAKEN,
    Reason.OBJECT_INVALID,
    Reason.IMAGE_NOT_USABLE,
)
OF_SOME_JOBS = ("RewardModelsReady", "PreflightPassed", "Admitted", "Evicted")
"""Conditions of jobs with reward models, with a fabric preflight, and with a queue."""

_ON_THE_WAY = ("Pending", "Queued", "Starting", "Recovering", "Suspending", "Deleting")

Row = tuple[str, bool, str, str]
"""A condition: type, whether it holds, reason, message."""


def next_status(facts: Facts, step: Step) -> RLJobStatus:
    """The status after this step: what was observed, what the step changes, and the conditions of both."""
    job, head = facts.job, facts.seen.head
    observed = {
        "observed_generation": job.generation,
        "phase": step.phase,
        "gpus": _gpus(job.spec) if job.problem is None else job.status.gpus,
        "cluster": facts.cluster.status,
        "reward_models": list(facts.servers.statuses),
        "progress": (head and head.progress) or job.status.progress,
        "checkpoint": _newest_checkpoint(facts),
    }
    status = job.status.model_copy(update=observed | step.status)
    status = status.model_copy(update={"workload": _workload(facts, status)})
    conditions = [_condition(job, facts.now, row) for row in _conditions(facts, step, status)]
    return status.model_copy(update={"conditions": conditions})


def _newest_checkpoint(facts: Facts) -> CheckpointStatus | None:
    """As the head sees it on the volume; without its answer, what is known, as long as the volume is there."""
    known, head = facts.job.status.checkpoint, facts.seen.head
    if head is not None:
        return None if head.empty else head.checkpoint or known
    return None if facts.volume is VolumeState.ABSENT else known


def _workload(facts: Facts, status: RLJobStatus) -> WorkloadStatus | None:
    """None for a job that has no queue and never had one."""
    job, work, before = facts.job, facts.workload, facts.job.status.workload
    if job.queue is None and work.found is None and before is None:
        return None
    before = before or WorkloadStatus(name=job.workload)
    changes: dict[str, Any] = {"queue": work.queue or job.queue, "cluster_queue": work.cluster_queue}
    if _is_evicted(facts) and not _was_evicted(job):
        changes |= {"evictions": before.evictions + 1, "lost_steps": None if facts.driver.is_open else 0}
    after = before.model_copy(update=changes)
    if after.evictions and after.lost_steps is None and nothing_runs(facts.seen):
        done = 0 if status.progress is None else status.progress.step
        return after.model_copy(update={"lost_steps": max(done - facts.durable_step, 0)})
    return after


def _is_evicted(facts: Facts) -> bool:
    taken = taken_away(facts) if facts.job.problem is None else None
    return taken is not None and taken[0] is Reason.EVICTED


def _was_evicted(job: Job) -> bool:
    before = job.condition("Evicted")
    return before is not None and before.status == "True"


def as_it_was(job: Job, now: datetime, reason: str, message: str) -> RLJobStatus:
    """The status as it was, except that the job is stalled, and why. What was never reported is Unknown."""
    unknown = [
        Condition(type=kind, status="Unknown", reason=reason, last_transition_time=now)
        for kind in CONDITIONS
        if kind not in OF_SOME_JOBS
    ]
    rows: list[Row] = [
        ("Ready", False, reason, message),
        ("Reconciling", False, Aspect.SETTLED, ""),
        ("Stalled", True, reason, message),
    ]
    conditions = {each.type: each for each in (*unknown, *job.status.conditions)}
    conditions |= {row[0]: _condition(job, now, row) for row in rows}
    changes = {"observed_generation": job.generation, "conditions": list(conditions.values())}
    return job.status.model_copy(update=changes)


def _gpus(spec: RLJobSpec) -> int:
    servers = sum(model.replicas * model.gpus_per_replica for model in spec.rewards.served)
    return spec.cluster.nodes * spec.cluster.gpus_per_node + servers


DETAIL_POLLS = 3
"""How many polls the status may lag behind in what is no transition."""


def kept_back(facts: Facts, new: RLJobStatus, settings: Settings) -> float:
    """Seconds until the new status may be written. A transition may be written at once, with everything else.

    Progress and the counts and messages of pods change with every look, and each write wakes every watcher of the job.
    """
    written = facts.seen.status_written
    if written is None or _transitions(new) != _transitions(facts.job.status):
        return 0.0
    since, longest = (facts.now - written).total_seconds(), DETAIL_POLLS * settings.poll_seconds
    return longest - since if 0 <= since < longest else 0.0  # a clock that was set back must not silence the status


def _transitions(status: RLJobStatus) -> tuple[RLJobStatus, dict[str, str], list[str]]:
    """The status without details. A checkpoint is no detail, because recovery counts restarts from it. Neither is the
    reason of Ready: it must not name what the job no longer waits for.
    """
    details: dict[str, Any] = {"progress": None, "cluster": None, "reward_models": [], "conditions": []}
    holds: dict[str, str] = {each.type: each.status for each in status.conditions}
    return status.model_copy(update=details), holds, [each.reason for each in status.conditions if each.type == "Ready"]


def _conditions(facts: Facts, step: Step, status: RLJobStatus) -> Iterator[Row]:
    phase, why = step.phase, (step.reason, step.message)
    stalled = phase == "Failed" or step.reason in _STALLED
    yield ("Ready", phase in ("Running", "Succeeded"), *why)
    if status.workload is not None:
        yield ("Admitted", *_admitted(facts))
    yield ("ClusterReady", *_cluster(facts))
    if status.reward_models:
        yield ("RewardModelsReady", *_reward_models(facts))
    if (measured := preflight_condition(facts)) is not None:
        yield ("PreflightPassed", *measured)
    yield ("Running", *_when(phase == "Running", why, Aspect.NOT_RUNNING))
    yield ("CheckpointAvailable", *_checkpoint(facts, status))
    if status.workload is not None:
        yield ("Evicted", *_evicted(facts, phase, status.workload))
    yield ("Suspended", *_when(phase == "Suspended", why, Aspect.NOT_SUSPENDED))
    yield ("Succeeded", *_when(phase == "Succeeded", why, Aspect.NOT_FINISHED if phase != "Failed" else Aspect.FAILED))
    yield ("Failed", *_when(phase == "Failed", why, Aspect.NOT_FAILED))
    yield ("Reconciling", *_when(phase in _ON_THE_WAY and not stalled, why, Aspect.SETTLED))
    yield ("Stalled", *_when(stalled, why, Aspect.NOT_STALLED))


def _admitted(facts: Facts) -> tuple[bool, str, str]:
    work = facts.workload
    if facts.job.problem is not None or not has_quota(facts):
        return False, Aspect.NOT_ADMITTED, work.message
    flavors = dict.fromkeys(
        flavor for each in work.admission["podSetAssignments"] for flavor in each.get("flavors", {}).values()
    )
    return True, Aspect.ADMITTED, f"By ClusterQueue {work.cluster_queue}, with {', '.join(flavors) or 'no flavor'}"


def _evicted(facts: Facts, phase: str, workload: WorkloadStatus) -> tuple[bool, str, str]:
    """It stays true until the next admission, so that people can read why the job waits."""
    before, known = facts.job.condition("Evicted"), facts.job.status.workload
    lost = "" if workload.lost_steps is None else f"; {workload.lost_steps} steps were lost"
    if _is_evicted(facts) and (taken := taken_away(facts)) is not None:
        return True, eviction_reason(facts), taken[1] + lost
    if before is None or before.status != "True" or phase != "Queued":
        return False, Aspect.NOT_EVICTED, ""
    is_new = known is not None and known.lost_steps is None
    return True, before.reason, before.message + (lost if is_new else "")


def _cluster(facts: Facts) -> tuple[bool, str, str]:
    if not facts.cluster.exists:
        return False, Aspect.NO_CLUSTER, ""
    if facts.job.problem is not None:
        return False, Reason.SPEC_NOT_READABLE, ""
    if facts.cluster.is_ready:
        return True, Aspect.ALL_PODS_READY, "Head and workers are ready"
    return False, Aspect.PODS_NOT_READY, facts.cluster.waits_for


def _reward_models(facts: Facts) -> tuple[bool, str, str]:
    if facts.job.problem is not None:
        return False, Reason.SPEC_NOT_READABLE, ""
    if facts.servers.state is ServersState.ABSENT:
        return False, Aspect.NO_SERVERS, ""
    if facts.servers.state is ServersState.READY:
        return True, Aspect.ALL_SERVERS_READY, "All servers of all reward models are ready"
    return False, Aspect.SERVERS_NOT_READY, facts.servers.waits_for


def _checkpoint(facts: Facts, status: RLJobStatus) -> tuple[bool, str, str]:
    before, known = facts.job.condition("CheckpointAvailable"), facts.job.status.checkpoint
    claim = f"PersistentVolumeClaim {names.claim(facts.job.name)}"
    if status.checkpoint is not None:
        terminating = f"; {claim} is terminating and is removed once no pod mounts it"
        return (
            True,
            Aspect.SAVED,
            f"Of step {status.checkpoint.step}" + (terminating if facts.volume is VolumeState.DELETING else ""),
        )
    if known is not None and _begins_again(facts):
        why = "spec.checkpoint.resume does not continue from it"
        return False, Aspect.NONE_YET, f"That of step {known.step} is kept on the volume; {why}"
    if known is not None:  # without a head only the claim shows it
        why = f"{claim} was deleted" if facts.seen.head is None else "the volume no longer holds a checkpoint"
        return False, Aspect.LOST, f"That of step {known.step} is lost: {why}"
    if before is not None and before.reason == Aspect.LOST:
        return False, Aspect.LOST, before.message
    return False, Aspect.NONE_YET, ""


def _begins_again(facts: Facts) -> bool:
    """Whether an agent reports no checkpoint because the job does not continue from its newest."""
    return facts.seen.head is not None and facts.job.problem is None and facts.job.spec.checkpoint.resume != "auto"


def _when(holds: bool, why: tuple[str, str], otherwise: str) -> tuple[bool, str, str]:
    return (True, *why) if holds else (False, otherwise, "")


def _condition(job: Job, now: datetime, row: Row) -> Condition:
    kind, holds, reason, message = row
    word, before = "True" if holds else "False", job.condition(kind)
    since = before.last_transition_time if before and before.status == word else now
    return Condition(
        type=kind, status=word, reason=reason, message=printable(message)[:MESSAGE], last_transition_time=since,
        observed_generation=job.generation,
    )  # fmt: skip
