"""From what was decided to what the status says. Conditions follow the phase, so they cannot contradict it."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rljob_api import RLJobSpec
from rljob_api.conditions import CONDITIONS, Aspect, Note, Reason
from rljob_api.v1alpha1 import CheckpointStatus, Condition, RLJobStatus
from rljob_operator import names
from rljob_operator.decide.step import MESSAGE, Step
from rljob_operator.kube.kinds import DEPLOYMENT, VOLUME_CLAIM, Manifest
from rljob_operator.observe import servers as reward_models
from rljob_operator.observe.cluster import cluster_status, is_ready, lost_labels, waiting_for
from rljob_operator.observe.snapshot import Snapshot, is_deleting
from rljob_operator.plan import Event
from rljob_operator.settings import Settings

_STALLED = (
    Reason.SPEC_NOT_READABLE,
    Reason.IMAGE_MISSING,
    Reason.NAME_TAKEN,
    Reason.VOLUME_DELETING,
    Reason.OBJECT_MISSING,
    Reason.OBJECT_INVALID,
    Reason.IMAGE_NOT_USABLE,
)
_ON_THE_WAY = ("Pending", "Queued", "Starting", "Recovering", "Suspending", "Deleting")

Said = tuple[str, bool, str, str]
"""Type, whether it holds, reason, message."""


def next_status(snapshot: Snapshot, step: Step) -> RLJobStatus:
    """The status after this step: what the snapshot shows, what the step changes, and the conditions of both."""
    job, head = snapshot.job, snapshot.head
    facts = {
        "observed_generation": job.generation,
        "phase": step.phase,
        "gpus": _gpus(job.spec) if job.problem is None else job.status.gpus,
        "cluster": cluster_status(snapshot),
        "reward_models": reward_models.statuses(snapshot) if job.problem is None else job.status.reward_models,
        "progress": (head and head.progress) or job.status.progress,
        "checkpoint": _newest_checkpoint(snapshot),
    }
    status = job.status.model_copy(update=facts | step.status)
    conditions = [_condition(snapshot, said) for said in _conditions(snapshot, step, status)]
    return status.model_copy(update={"conditions": conditions})


def _newest_checkpoint(snapshot: Snapshot) -> CheckpointStatus | None:
    """By the head, which sees the volume; where none answers, what is known, as long as the volume is there."""
    known, head = snapshot.job.status.checkpoint, snapshot.head
    if head is not None:
        return None if head.empty else head.checkpoint or known
    job = snapshot.job
    made_for_it = job.problem is None and job.spec.checkpoint.volume.existing_claim is None
    return None if made_for_it and _claim(snapshot) is None else known


def _claim(snapshot: Snapshot) -> Manifest | None:
    """Of the volume that was made for the job."""
    return snapshot.child(VOLUME_CLAIM, names.claim(snapshot.job.name))


def as_it_was(snapshot: Snapshot, reason: str, message: str, *, stalled: bool) -> RLJobStatus:
    """The status as it was, but that the job is not ready, and why. What nobody has told yet is Unknown.

    stalled: it gets no further without a person.
    """
    job, why = snapshot.job, (reason, message)
    unknown = [
        Condition(type=kind, status="Unknown", reason=reason, last_transition_time=snapshot.now)
        for kind in CONDITIONS
        if kind != "RewardModelsReady"
    ]
    said = [
        ("Ready", False, *why),
        ("Reconciling", *_when(not stalled, why, Aspect.SETTLED)),
        ("Stalled", *_when(stalled, why, Aspect.NOT_STALLED)),
    ]
    conditions = {each.type: each for each in (*unknown, *job.status.conditions)}
    conditions |= {each[0]: _condition(snapshot, each) for each in said}
    changes = {"observed_generation": job.generation, "conditions": list(conditions.values())}
    return job.status.model_copy(update=changes)


def _gpus(spec: RLJobSpec) -> int:
    servers = sum(model.replicas * model.gpus_per_replica for model in spec.rewards.models)
    return spec.cluster.nodes * spec.cluster.gpus_per_node + servers


DETAIL_POLLS = 3
"""How many polls long the status may lag behind in what is no transition."""


def kept_back(snapshot: Snapshot, new: RLJobStatus, settings: Settings) -> float:
    """Seconds until the new status may be written. A transition may at once, and takes all else along.

    Progress and the counts and words of pods change with every look, and each write wakes whoever watches the job.
    """
    if snapshot.told is None or _transitions(new) != _transitions(snapshot.job.status):
        return 0.0
    since = (snapshot.now - snapshot.told).total_seconds()
    longest = DETAIL_POLLS * settings.poll_seconds
    return longest - since if 0 <= since < longest else 0.0  # a clock that was set back silences nobody


def _transitions(status: RLJobStatus) -> tuple[RLJobStatus, dict[str, str], list[str]]:
    """The status without what is mere detail. A checkpoint is none: recovery counts restarts from it. Nor is why a job
    is not ready: what it waited for must not stand there when it waits for something else.
    """
    details: dict[str, Any] = {"progress": None, "cluster": None, "reward_models": [], "conditions": []}
    holds: dict[str, str] = {each.type: each.status for each in status.conditions}
    return status.model_copy(update=details), holds, [each.reason for each in status.conditions if each.type == "Ready"]


def events(old: RLJobStatus, new: RLJobStatus) -> tuple[Event, ...]:
    """What a person should read about the way from one status to the next: each transition once, in its order."""
    return tuple(dict.fromkeys(_events(old, new)))


def _conditions(snapshot: Snapshot, step: Step, status: RLJobStatus) -> Iterator[Said]:
    phase, why = step.phase, (step.reason, step.message)
    stalled = phase == "Failed" or step.reason in _STALLED
    yield ("Ready", phase in ("Running", "Succeeded"), *why)
    yield ("ClusterReady", *_cluster(snapshot))
    if status.reward_models:
        yield ("RewardModelsReady", *_reward_models(snapshot))
    yield ("Running", *_when(phase == "Running", why, Aspect.NOT_RUNNING))
    yield ("CheckpointAvailable", *_checkpoint(snapshot, status))
    yield ("Suspended", *_when(phase == "Suspended", why, Aspect.NOT_SUSPENDED))
    yield ("Succeeded", *_when(phase == "Succeeded", why, Aspect.NOT_FINISHED if phase != "Failed" else Aspect.FAILED))
    yield ("Failed", *_when(phase == "Failed", why, Aspect.NOT_FAILED))
    yield ("Reconciling", *_when(phase in _ON_THE_WAY and not stalled, why, Aspect.SETTLED))
    yield ("Stalled", *_when(stalled, why, Aspect.NOT_STALLED))


def _cluster(snapshot: Snapshot) -> tuple[bool, str, str]:
    if snapshot.cluster is None:
        return False, Aspect.NO_CLUSTER, ""
    if snapshot.job.problem is not None:
        return False, Reason.SPEC_NOT_READABLE, ""
    return (
        (True, Aspect.ALL_PODS_READY, "; ".join(("head and workers are ready", *lost_labels(snapshot))))
        if is_ready(snapshot)
        else (False, Aspect.PODS_NOT_READY, waiting_for(snapshot))
    )


def _reward_models(snapshot: Snapshot) -> tuple[bool, str, str]:
    if snapshot.job.problem is not None:
        return False, Reason.SPEC_NOT_READABLE, ""
    if not snapshot.children.get(DEPLOYMENT):
        return False, Aspect.NO_SERVERS, ""
    return (
        (True, Aspect.ALL_SERVERS_READY, "all servers of all reward models are ready")
        if reward_models.all_ready(snapshot)
        else (False, Aspect.SERVERS_NOT_READY, reward_models.waiting_for(snapshot))
    )


def _checkpoint(snapshot: Snapshot, status: RLJobStatus) -> tuple[bool, str, str]:
    before, known = snapshot.job.condition("CheckpointAvailable"), snapshot.job.status.checkpoint
    name, claim = names.claim(snapshot.job.name), _claim(snapshot)
    if status.checkpoint is not None:
        goes = claim is not None and is_deleting(claim)
        warning = f"; {name} is being deleted, and goes with the last pod that uses it" if goes else ""
        return True, Aspect.SAVED, f"of step {status.checkpoint.step}{warning}"
    if known is not None and _begins_anew(snapshot):
        return (
            False,
            Aspect.NONE_YET,
            f"that of step {known.step} is on the volume, apart, as spec.checkpoint.resume says",
        )
    if known is not None:  # without a head only the claim can have told
        why = f"{name} was deleted" if snapshot.head is None else "its volume has none any more"
        return False, Aspect.LOST, f"that of step {known.step} is lost: {why}"
    if before is not None and before.reason == Aspect.LOST:
        return False, Aspect.LOST, before.message
    return False, Aspect.NONE_YET, ""


def _begins_anew(snapshot: Snapshot) -> bool:
    """Whether an agent tells of no checkpoint because the job does not go on from its newest."""
    job = snapshot.job
    return snapshot.head is not None and job.problem is None and job.spec.checkpoint.resume != "auto"


def _when(holds: bool, why: tuple[str, str], otherwise: str) -> tuple[bool, str, str]:
    return (True, *why) if holds else (False, otherwise, "")


def _condition(snapshot: Snapshot, said: Said) -> Condition:
    kind, holds, reason, message = said
    word, before = "True" if holds else "False", snapshot.job.condition(kind)
    since: datetime = before.last_transition_time if before and before.status == word else snapshot.now
    return Condition(
        type=kind, status=word, reason=reason, message=message[:MESSAGE], last_transition_time=since,
        observed_generation=snapshot.job.generation,
    )  # fmt: skip


TOLD_REASONS: dict[str, bool] = {
    Reason.OBJECT_FORBIDDEN: True,
    Reason.OBJECT_FAILING: True,
    Reason.STOPPED_ON_REQUEST: False,
    Reason.MORE_STEPS: False,
    Reason.SPEC_CHANGED: False,
    Reason.KEY_CHANGED: False,
    Reason.DELETING: False,
}
"""Reasons of Ready that make no condition true, and are events none the less; and whether they are warnings."""


def _events(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    """In the order in which it happens: pods are there before an attempt starts, and it saves before it ends."""
    ready = next(each for each in new.conditions if each.type == "Ready")
    yield from _turned(old, new, "ClusterReady", "RewardModelsReady")
    yield from _lost_beside(old, new)
    if new.attempt != old.attempt:
        yield Event(Note.ATTEMPT_STARTING, f"attempt {new.attempt}")
    yield from _turned(old, new, "Running")
    if new.checkpoint is not None and old.checkpoint is None:
        yield Event(Note.CHECKPOINT_SAVED, f"the first checkpoint, of step {new.checkpoint.step}")
    if new.checkpoint is None and old.checkpoint is not None:
        (told,) = (each for each in new.conditions if each.type == "CheckpointAvailable")
        if told.reason == Aspect.LOST:
            yield Event(Note.CHECKPOINT_LOST, told.message, warning=True)
    decided = new.recovery.action is not None and new.recovery.decided != old.recovery.decided
    left = (old.phase, new.phase) == ("Running", "Recovering") and ready.reason not in TOLD_REASONS
    if decided or left:
        yield Event(ready.reason, ready.message, warning=True)
    before_ready = [each.reason for each in old.conditions if each.type == "Ready"]
    if ready.reason in TOLD_REASONS and ready.reason not in before_ready and new.phase != "Failed":
        yield Event(ready.reason, ready.message, TOLD_REASONS[ready.reason])
    yield from _turned(old, new, "Suspended", "Succeeded")
    if new.phase == "Failed":
        yield from _turned(old, new, "Failed", warning=True)
    else:
        yield from _stalled_by(old, new)


def _stalled_by(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    """Another reason is news too: it asks for something else."""
    before = {each.reason for each in old.conditions if each.type == "Stalled" and each.status == "True"}
    for each in new.conditions:
        if each.type == "Stalled" and each.status == "True" and each.reason not in before:
            yield Event(each.reason, each.message, warning=True)


def _lost_beside(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    """A driver waits for servers, and may train on without a pod, so nothing else tells of either for long."""
    if old.phase == new.phase == "Running":
        before = {each.type for each in old.conditions if each.status == "True"}
        for each in new.conditions:
            if each.type in before and each.reason in (Aspect.PODS_NOT_READY, Aspect.SERVERS_NOT_READY):
                yield Event(each.reason, each.message, warning=True)


def _turned(old: RLJobStatus, new: RLJobStatus, *kinds: str, warning: bool = False) -> Iterator[Event]:
    """Those of the conditions that have become true."""
    before = {each.type for each in old.conditions if each.status == "True"}
    for each in new.conditions:
        if each.type in kinds and each.status == "True" and each.type not in before:
            yield Event(each.reason, each.message, warning)
