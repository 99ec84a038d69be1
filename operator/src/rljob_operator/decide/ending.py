"""Gates of jobs that are over, deleted or finished, and of those that this operator cannot read."""

from collections.abc import Iterator
from dataclasses import replace

from rljob_api import parse_duration
from rljob_api.conditions import Reason
from rljob_operator import names
from rljob_operator.decide.step import Step
from rljob_operator.job import Job
from rljob_operator.kube.kinds import DEPLOYMENT, SERVICE, VOLUME_CLAIM, Ref
from rljob_operator.observe.cluster import had_attempt, lives, pods_left
from rljob_operator.observe.snapshot import Snapshot, controller_of, is_deleting, orphaned_pods
from rljob_operator.settings import Settings

LEFTOVERS_SECONDS = 5.0


def deletion(snapshot: Snapshot, settings: Settings) -> Step | None:
    """The job's finalizer stays until its pods are gone, but not for ever.

    What runs is deleted also where that time was over before anybody looked: Kubernetes takes none of it away as long
    as another's finalizer keeps the job, and never the pods that nobody owns.
    """
    job = snapshot.job
    if job.deleted is None:
        return None
    left = settings.deletion_seconds - (snapshot.now - job.deleted).total_seconds()
    gone = snapshot.cluster is None and not snapshot.pods and not list(reward_models(snapshot))
    if gone or left <= 0:
        message = "nothing is left"
        if not gone:
            message = f"{pods_left(snapshot)} did not end within {settings.deletion_seconds:.0f} s"
        if kept_by := others_finalizers(job):
            message += (
                f"; the job stays for {', '.join(kept_by)} of its metadata.finalizers, which are not the operator's"
            )
        step = _over(job) or Step("Deleting", Reason.DELETING, message)
        return replace(step, deployed=False, finalizer=False, delete=tuple(what_runs(snapshot)))
    step = _over(job) or Step("Deleting", Reason.DELETING, f"waiting for {pods_left(snapshot)} to end")
    return replace(step, deployed=False, delete=tuple(what_runs(snapshot)), again_in=left)


def others_finalizers(job: Job) -> list[str]:
    """Of somebody who may never take them away. Kubernetes' own are a matter of moments."""
    return [each for each in job.finalizers if each not in (names.FINALIZER, "foregroundDeletion", "orphan")]


def retirement(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """A finished job stays as it is; what was made for it goes after spec.ttlAfterFinished, but for its volume.

    First what runs: pods that are ending still need their NetworkPolicy. Where the time cannot be read, nothing goes. A
    driver that nobody knows the end of is not left to train on for a job that is over, nor pods without a RayCluster.
    """
    job, ended = snapshot.job, snapshot.job.status.completion_time
    step = _over(job)
    if step is None or ended is None:
        return None
    if job.problem is not None:
        return replace(step, deployed=False)
    left = parse_duration(job.spec.ttl_after_finished) - (snapshot.now - ended).total_seconds()
    if left > 0:
        going = tuple(cluster(snapshot)) if snapshot.cluster is None or lives(snapshot) else ()
        return replace(step, deployed=False, delete=going, again_in=left)
    runs = snapshot.cluster or snapshot.pods or snapshot.children.get(DEPLOYMENT)
    return replace(step, deployed=False, delete=tuple((what_runs if runs else everything)(snapshot)))


def _over(job: Job) -> Step | None:
    """What a job that has succeeded or failed says, for ever."""
    status = job.status
    if status.phase not in ("Succeeded", "Failed") or status.completion_time is None:
        return None
    done = job.condition(status.phase)
    reason, message = (done.reason, done.message) if done is not None else (status.phase, "")
    return Step(status.phase, reason, message)


def unreadable(snapshot: Snapshot, settings: Settings) -> Step | None:
    """A spec of another API version: what runs is left alone, and its progress told."""
    job = snapshot.job
    if job.problem is None:
        return None
    phase = job.status.phase if job.status.phase != "Running" or _may_run(snapshot) else "Recovering"
    return Step(phase, Reason.SPEC_NOT_READABLE, job.problem, deployed=False, again_in=settings.poll_seconds)


def _may_run(snapshot: Snapshot) -> bool:
    """Whether nothing says that the driver is gone."""
    head = snapshot.head
    there = had_attempt(snapshot) and not is_deleting(snapshot.cluster or {})
    return there and (head is None or (head.driver is not None and not head.driver.state.is_final))


def leftovers(snapshot: Snapshot, _settings: Settings) -> Step | None:
    """Children of a deleted job of the same name go when Kubernetes has got round to it."""
    children = (child for of_kind in snapshot.children.values() for child in of_kind.values())
    foreign = [child for child in children if controller_of(child) not in (None, snapshot.job.uid)]
    if not foreign:
        return None
    named = f"{foreign[0]['kind']} {foreign[0]['metadata']['name']}"
    message = f"waiting until Kubernetes has removed what an earlier job of this name left: {named}"
    phase = snapshot.job.status.phase
    return Step(phase, Reason.WAITING_FOR_REMOVAL, message, deployed=False, again_in=LEFTOVERS_SECONDS)


def cluster(snapshot: Snapshot) -> Iterator[Ref]:
    """The RayCluster, where it is not being deleted already; or what is left of one that somebody deleted without its
    pods.
    """
    found = snapshot.cluster
    if found is None:
        yield from map(Ref.of, orphaned_pods(snapshot))
    elif not is_deleting(found):
        yield Ref.of(found)


def reward_models(snapshot: Snapshot) -> Iterator[Ref]:
    """Deployments and Services, where they are not being deleted already."""
    for kind in (DEPLOYMENT, SERVICE):
        yield from (Ref.of(child) for child in snapshot.children.get(kind, {}).values() if not is_deleting(child))


def what_runs(snapshot: Snapshot) -> Iterator[Ref]:
    """Everything that has pods."""
    yield from cluster(snapshot)
    yield from reward_models(snapshot)


def everything(snapshot: Snapshot) -> Iterator[Ref]:
    """All children but the volume's claim. The Secret, which the operator may not read, goes with the job."""
    for kind, children in snapshot.children.items():
        if kind != VOLUME_CLAIM:
            yield from (Ref.of(child) for child in children.values() if not is_deleting(child))
