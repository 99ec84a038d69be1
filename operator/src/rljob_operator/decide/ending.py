"""Gates of jobs that are over, deleted or finished, and of those that this operator cannot read."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rljob_api import parse_duration
from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.job import Job
from rljob_operator.kube.kinds import DEPLOYMENT, SERVICE, VOLUME_CLAIM, WORKLOAD, Manifest, Ref
from rljob_operator.observe.cluster import ClusterState
from rljob_operator.observe.facts import Facts
from rljob_operator.observe.leaving import lost_pods
from rljob_operator.observe.snapshot import Snapshot, controller_of, is_deleting
from rljob_operator.observe.workload import WorkloadState
from rljob_operator.plan import Patch, Step
from rljob_operator.render.workload import finished, unheld
from rljob_operator.settings import Settings

LEFTOVERS_SECONDS = 5.0


def deletion(facts: Facts, settings: Settings) -> Step | None:
    """The job's finalizer stays until its pods are gone, or until settings.deletion_seconds have passed.

    What runs is deleted even if that time passed before the operator looked: Kubernetes does not delete it while
    another finalizer keeps the job.
    """
    job, seen = facts.job, facts.seen
    if job.deleted is None:
        return None
    left = settings.deletion_seconds - (facts.now - job.deleted).total_seconds()
    gone = nothing_runs(seen)
    message = f"Waiting for {pods_left(seen)} to end"
    if gone or left <= 0:
        late = f"{pods_left(seen)} did not end within {settings.deletion_seconds:.0f} s"
        message = "Nothing is left" if gone else late
        if kept_by := others_finalizers(job):
            message += f"; metadata.finalizers of other controllers keep the job: {', '.join(kept_by)}"
    step = _over(job) or Step("Deleting", Reason.DELETING, message)
    step = replace(step, deployed=False, delete=tuple(what_runs(seen)))
    if not gone and left > 0:
        return replace(step, again_in=left)
    held = quota_back(_workloads(seen)) if gone else ()  # what has not ended keeps its quota when the job has gone
    return replace(step, patch=held) if held else replace(step, finalizer=False)


def replaced(facts: Facts) -> dict[str, Any]:
    """What removes the Workload, whose quota no pod needs: first its finalizer goes."""
    found = facts.workload.found
    if found is None:
        return {}
    if patch := unheld(found):
        return {"patch": patch}
    return {} if facts.workload.state is WorkloadState.DELETING else {"delete": (Ref.of(found),)}


def quota_back(workloads: Iterable[Manifest]) -> tuple[Patch, ...]:
    """Take the finalizer from Workloads of a job that has no pods. Kueue does not do it."""
    return tuple(patch for each in workloads for patch in unheld(each))


def _workloads(seen: Snapshot) -> Iterable[Manifest]:
    return seen.children.get(WORKLOAD, {}).values()


def others_finalizers(job: Job) -> list[str]:
    """Finalizers that their controllers may never remove. Those of Kubernetes itself last for moments."""
    return [each for each in job.finalizers if each not in (names.FINALIZER, "foregroundDeletion", "orphan")]


def retirement(facts: Facts, _settings: Settings) -> Step | None:
    """A finished job keeps its status; its objects, except the volume, go after spec.ttlAfterFinished.

    First what runs: pods that are ending still need their NetworkPolicy. If the spec cannot be read, nothing goes. A
    driver whose end is unknown does not train on for a job that is over. Pods that stay keep their quota, unless Kueue
    wants it back.
    """
    job, finished_at = facts.job, facts.job.status.completion_time
    step = _over(job)
    if step is None or finished_at is None:
        return None
    if nothing_runs(facts.seen):
        step = replace(step, patch=_accounted(facts))
    if job.problem is not None:
        return replace(step, deployed=False)
    left = parse_duration(job.spec.ttl_after_finished) - (facts.now - finished_at).total_seconds()
    if left > 0 and facts.workload.state is not WorkloadState.EVICTED:
        going = tuple(cluster(facts.seen)) if facts.lives else ()
        return replace(step, deployed=False, delete=going, again_in=left)
    runs = facts.cluster.exists or facts.seen.pods or facts.seen.children.get(DEPLOYMENT)
    return replace(step, deployed=False, delete=tuple((what_runs if runs else everything)(facts.seen)))


def _accounted(facts: Facts) -> tuple[Patch, ...]:
    """The Workload of a job that is over stays, as Kueue's record of it."""
    found, status = facts.workload.found, facts.job.status
    if found is None:
        return ()
    done = facts.job.condition(status.phase)
    return finished(found, facts.now, status.phase, "" if done is None else done.message) or unheld(found)


def _over(job: Job) -> Step | None:
    """What the status of a job that has succeeded or failed says from then on."""
    status = job.status
    if status.phase not in ("Succeeded", "Failed") or status.completion_time is None:
        return None
    done = job.condition(status.phase)
    reason, message = (done.reason, done.message) if done is not None else (status.phase, "")
    return Step(status.phase, reason, message)


def unreadable(facts: Facts, settings: Settings) -> Step | None:
    """The spec is of another API version: what runs is left alone, and its progress is reported."""
    job, driver = facts.job, facts.driver
    if job.problem is None:
        return None
    may_run = facts.lives and not driver.over and facts.cluster.state is not ClusterState.DELETING
    phase = job.status.phase if job.status.phase != "Running" or may_run else "Recovering"
    freed = replaced(facts) if is_idle(facts) else {}
    return Step(phase, Reason.SPEC_NOT_READABLE, job.problem, deployed=False, again_in=settings.poll_seconds, **freed)


def leftovers(facts: Facts, _settings: Settings) -> Step | None:
    """Kubernetes has not yet removed the children of a deleted job of the same name."""
    children = (child for of_kind in facts.seen.children.values() for child in of_kind.values())
    foreign = [child for child in children if controller_of(child) not in (None, facts.job.uid)]
    if not foreign:
        return None
    named = f"{foreign[0]['kind']} {foreign[0]['metadata']['name']}"
    message = f"Waiting for Kubernetes to remove {named}, which an earlier job of this name left"
    phase = facts.job.status.phase
    freed = quota_back(_workloads(facts.seen)) if nothing_runs(facts.seen) else ()
    return Step(phase, Reason.WAITING_FOR_REMOVAL, message, deployed=False, patch=freed, again_in=LEFTOVERS_SECONDS)


def nothing_runs(seen: Snapshot) -> bool:
    return seen.cluster is None and not seen.pods and not list(servers(seen))


def is_idle(facts: Facts) -> bool:
    """Whether nothing runs, and the status says how the last attempt ended."""
    return nothing_runs(facts.seen) and not facts.driver.is_open


def pods_left(seen: Snapshot) -> str:
    """How many pods have not ended, and which of those are lost with their nodes; or what is left without pods."""
    if not seen.pods:
        return "the RayCluster" if seen.cluster is not None else "the reward models"
    lost = [f"{pod['metadata']['name']} on node {pod['spec'].get('nodeName')}" for pod in lost_pods(seen)]
    remedy = "lost with its node: restore the node, delete it, or set spec.recovery.forceDeleteLostPods"
    count = len(seen.pods)
    return f"{count} pod{'s' if count > 1 else ''}" + (f" ({', '.join(lost[:3])}: {remedy})" if lost else "")


def cluster(seen: Snapshot) -> Iterator[Ref]:
    """The RayCluster, unless it is being deleted."""
    if seen.cluster is not None and not is_deleting(seen.cluster):
        yield Ref.of(seen.cluster)


def servers(seen: Snapshot) -> Iterator[Ref]:
    """Deployments and Services of reward models that are not being deleted."""
    for kind in (DEPLOYMENT, SERVICE):
        yield from (Ref.of(child) for child in seen.children.get(kind, {}).values() if not is_deleting(child))


def what_runs(seen: Snapshot) -> Iterator[Ref]:
    """Everything that has pods."""
    yield from cluster(seen)
    yield from servers(seen)


def everything(seen: Snapshot) -> Iterator[Ref]:
    """All children except the volume's claim, and the Workload, which is Kueue's record of the job. The Secret, which
    the operator may not read, goes with the job.
    """
    for kind, children in seen.children.items():
        if kind not in (VOLUME_CLAIM, WORKLOAD):
            yield from (Ref.of(child) for child in children.values() if not is_deleting(child))
