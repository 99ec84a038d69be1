"""`kubectl rljob suspend` and `resume`: spec.suspend, written as the user."""

from collections.abc import Iterator
from threading import Timer
from typing import Annotated

import typer

from rljob_operator.kubectl.calls import RLJOBS, Context, Kubectl, Namespace, Problem
from rljob_operator.kubectl.jobs import FINISHED, Deleted, Job, job_named, newest, read

_WITHOUT_PODS = ("", "Pending", "Queued", "Suspended")

_SUSPENDED = ("Suspending", "Suspended")
"""What the operator says until it has seen that a job is resumed."""

UNSEEN_SECONDS = 10.0
UNSEEN = "no operator has seen the change yet; does rljob-operator run, and watch this namespace?"

Wait = Annotated[bool, typer.Option("--wait", help="Until it is so.")]


def suspend(name: str, wait: Wait = False, namespace: Namespace = None, context: Context = None) -> None:
    """Save a checkpoint, stop, and give back everything but the volume."""
    kubectl = Kubectl(namespace, context)
    job = _set(kubectl, job_named(kubectl, name), suspended=True)
    if wait and job.other_manager is None:
        job = _wait(kubectl, job, "Suspended")
    if job.other_manager is not None:
        typer.echo(_left_to_another(job))
    elif job.is_seen and job.phase == "Suspended":
        typer.echo(f"{job.name} is suspended; {_goes_on(job)}")
    else:
        typer.echo(f"{job.name} {_promise(job)}")


def resume(name: str, wait: Wait = False, namespace: Namespace = None, context: Context = None) -> None:
    """Start a suspended job again, from its newest checkpoint."""
    kubectl = Kubectl(namespace, context)
    before = job_named(kubectl, name)
    job = _set(kubectl, before, suspended=False)
    if wait and job.other_manager is None:
        job = _wait(kubectl, job, "Running")
    if job.other_manager is not None:
        typer.echo(_left_to_another(job))
    elif job.is_seen and job.phase == "Running":
        typer.echo(f"{job.name} runs: attempt {job.status['attempt']}")
    elif not before.spec.get("suspend") and before.phase not in _SUSPENDED:
        typer.echo(f"{job.name} was not suspended; it is {before.phase or 'new'}; --wait waits until it runs")
    else:
        typer.echo(f"{job.name} starts; {_goes_on(job)}; --wait waits until it runs")


def _left_to_another(job: Job) -> str:
    word = "true" if job.spec.get("suspend") else "false"
    return f"spec.suspend of {job.name} is {word}; what follows is up to {job.other_manager}, by spec.managedBy"


def _promise(job: Job) -> str:
    """What comes of a suspension that the operator has not done yet."""
    if job.phase in _WITHOUT_PODS:
        return "has no pods, and gets none until it is resumed; --wait waits until the operator has seen it"
    saves = "save a checkpoint and " if job.part("driver").get("state") == "Submitted" else ""
    return f"will {saves}give back its pods; --wait waits for that"


def _goes_on(job: Job) -> str:
    saved = job.part("checkpoint")
    return f"it goes on from step {saved['step']}" if saved else "it begins at step 0"


def _set(kubectl: Kubectl, job: Job, *, suspended: bool) -> Job:
    if job.phase in FINISHED:
        raise Problem(f"{job.name} has {job.phase.lower()} ({job.reason}), which is final; create another job")
    if "deletionTimestamp" in job.manifest["metadata"]:
        raise Problem(f"{job.name} is being deleted, which is final; create another job once it is gone")
    if bool(job.spec.get("suspend")) == suspended:
        return job
    return read(kubectl.patch(RLJOBS, job.name, {"spec": {"suspend": suspended}}))


def _wait(kubectl: Kubectl, job: Job, phase: str) -> Job:
    """What the operator says meanwhile goes to stderr, and that it says nothing."""
    said, unseen = "", Timer(UNSEEN_SECONDS, typer.echo, (UNSEEN,), {"err": True})
    unseen.daemon = True
    unseen.start()
    for now in _versions(kubectl, job):
        if not now.is_seen:
            continue
        unseen.cancel()
        if now.phase == phase:
            return now
        if now.phase in FINISHED:
            raise Problem(f"{now.name} has {now.phase.lower()} meanwhile ({now.reason}): {now.message}")
        if now.message != said:
            said = now.message
            typer.echo(f"{now.phase}: {said}", err=True)
    raise AssertionError("versions have no end")


def _versions(kubectl: Kubectl, job: Job) -> Iterator[Job]:
    """The job as it is and as it becomes, for ever. Raises Deleted."""
    while True:
        yield job
        for change, manifest in kubectl.watch_rljob(job.manifest):
            if change == "DELETED":
                raise Deleted(job)
            yield read(manifest)
        job = newest(kubectl, job)
