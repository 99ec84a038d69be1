"""What people should read about the way from one status to the next: each transition once, in its order."""

from collections.abc import Iterator

from rljob_api.conditions import Aspect, Note, Reason
from rljob_api.v1alpha1 import Condition, Progress, RLJobStatus
from rljob_operator.plan import Event

EVENT_REASONS: dict[str, bool] = {
    Reason.OBJECT_FORBIDDEN: True,
    Reason.OBJECT_FAILING: True,
    Reason.QUEUED: False,
    Reason.STOPPED_ON_REQUEST: False,
    Reason.MORE_STEPS: False,
    Reason.SPEC_CHANGED: False,
    Reason.KEY_CHANGED: False,
    Reason.DELETING: False,
}
"""Reasons of Ready that make no condition true and are events all the same; and whether they are warnings."""


def events(old: RLJobStatus, new: RLJobStatus) -> tuple[Event, ...]:
    return tuple(dict.fromkeys(_events(old, new)))


def _events(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    """Pods are ready before an attempt starts, and a driver saves before it ends."""
    ready = next(each for each in new.conditions if each.type == "Ready")
    yield from _turned(old, new, "Evicted", warning=True)
    yield from _turned(old, new, "Admitted", "ClusterReady", "RewardModelsReady")
    yield from _lost_beside(old, new)
    if new.attempt != old.attempt:
        yield Event(Note.ATTEMPT_STARTING, f"Attempt {new.attempt}")
    yield from _turned(old, new, "PreflightPassed", "Running")
    yield from _checkpoint(old, new)
    yield from _engine(old, new)
    yield from _excluded(old, new)
    decided = new.recovery.action is not None and new.recovery.decided != old.recovery.decided
    left = (old.phase, new.phase) == ("Running", "Recovering") and ready.reason not in EVENT_REASONS
    if decided or left:
        yield Event(ready.reason, ready.message, warning=True)
    before_ready = [each.reason for each in old.conditions if each.type == "Ready"]
    if ready.reason in EVENT_REASONS and ready.reason not in before_ready and new.phase != "Failed":
        yield Event(ready.reason, ready.message, EVENT_REASONS[ready.reason])
    yield from _turned(old, new, "Suspended", "Succeeded")
    if new.phase == "Failed":
        yield from _turned(old, new, "Failed", warning=True)
    else:
        yield from _stalled_by(old, new)


def _checkpoint(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    if new.checkpoint is not None and old.checkpoint is None:
        yield Event(Note.CHECKPOINT_SAVED, f"The first checkpoint, of step {new.checkpoint.step}, is durable")
    if new.checkpoint is None and old.checkpoint is not None:
        (available,) = (each for each in new.conditions if each.type == "CheckpointAvailable")
        if available.reason == Aspect.LOST:
            yield Event(Note.CHECKPOINT_LOST, available.message, warning=True)


def _excluded(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    known = {each.name for each in old.excluded_nodes}
    for each in new.excluded_nodes:
        if each.name not in known:
            message = f"Worker pods of the next RayClusters avoid node {each.name}: {each.reason}"
            yield Event(Note.NODE_EXCLUDED, message, warning=True)


def _engine(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    """Engine and trainer no longer agree, or do not from the beginning."""
    if (now := _above_tolerance(new.progress)) is not None and _above_tolerance(old.progress) is None:
        message = (
            f"Log-probabilities of engine and trainer differ by {now.engine_difference:g} nats on average in step"
            f" {now.step}; the tolerance is {now.engine_tolerance:g}"
        )
        yield Event(Note.ENGINE_DIFFERS, message, warning=True)


def _above_tolerance(progress: Progress | None) -> Progress | None:
    if progress is None or progress.engine_difference is None or progress.engine_tolerance is None:
        return None
    return progress if progress.engine_difference > progress.engine_tolerance else None


def _stalled_by(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    """Another reason is news too: it has another remedy."""
    before, now = _held(old).get("Stalled"), _held(new).get("Stalled")
    if now is not None and (before is None or before.reason != now.reason):
        yield Event(now.reason, now.message, warning=True)


def _lost_beside(old: RLJobStatus, new: RLJobStatus) -> Iterator[Event]:
    """A driver waits for servers, and may train on without a pod, so no phase reports either for long."""
    if old.phase == new.phase == "Running":
        for each in new.conditions:
            if each.type in _held(old) and each.reason in (Aspect.PODS_NOT_READY, Aspect.SERVERS_NOT_READY):
                yield Event(each.reason, each.message, warning=True)


def _turned(old: RLJobStatus, new: RLJobStatus, *kinds: str, warning: bool = False) -> Iterator[Event]:
    """Those of the conditions that have become true."""
    for kind, each in _held(new).items():
        if kind in kinds and kind not in _held(old):
            yield Event(each.reason, each.message, warning)


def _held(status: RLJobStatus) -> dict[str, Condition]:
    """The conditions that are true, by their types."""
    return {each.type: each for each in status.conditions if each.status == "True"}
