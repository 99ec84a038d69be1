"""`kubectl rljob suspend` and `resume`: spec.suspend, written as the user."""

import time
from typing import Annotated

import typer

from rljob_operator.kubectl.calls import RLJOBS, Context, Kubectl, Namespace, NotFound, Problem
from rljob_operator.kubectl.jobs import FINISHED, Job, job_named, read

POLL_SECONDS = 1.0

Wait = Annotated[bool, typer.Option("--wait", help="Until it is so.")]


def suspend(name: str, wait: Wait = False, namespace: Namespace = None, context: Context = None) -> None:
    """Save a checkpoint, stop, and release everything but the volume."""
    _change(Kubectl(namespace, context), name, suspended=True, phase="Suspended" if wait else None)


def resume(name: str, wait: Wait = False, namespace: Namespace = None, context: Context = None) -> None:
    """Start a suspended job again, from its newest checkpoint."""
    _change(Kubectl(namespace, context), name, suspended=False, phase="Running" if wait else None)


def _change(kubectl: Kubectl, name: str, *, suspended: bool, phase: str | None) -> None:
    """phase: to wait for; None to return at once."""
    job = _set(kubectl, job_named(kubectl, name), suspended=suspended)
    word = "true" if suspended else "false"
    if job.other_manager is not None:
        typer.echo(f"{job.name}: spec.suspend is {word}; {job.other_manager} manages the job, by spec.managedBy")
        return
    typer.echo(f"{job.name}: spec.suspend is {word}; {_start(job)}")
    if phase is not None:
        _wait(kubectl, job, phase)


def _start(job: Job) -> str:
    saved = job.part("checkpoint")
    return f"the newest checkpoint is of step {saved['step']}" if saved else "there is no checkpoint yet"


def _set(kubectl: Kubectl, job: Job, *, suspended: bool) -> Job:
    if job.phase in FINISHED:
        raise Problem(f"{job.name} has {job.phase.lower()} ({job.reason}), which is final; create another job")
    if "deletionTimestamp" in job.manifest["metadata"]:
        raise Problem(f"{job.name} is being deleted, which is final; create another job once it is gone")
    if bool(job.spec.get("suspend")) == suspended:
        return job
    return read(kubectl.patch(RLJOBS, job.name, {"spec": {"suspend": suspended}}))


def _wait(kubectl: Kubectl, job: Job, phase: str) -> None:
    """Prints each phase and message meanwhile."""
    printed = ""
    while True:
        now = _again(kubectl, job)
        words = f"{now.phase}: {now.message}" if now.is_seen else "waiting for the operator to see the change"
        if words != printed:
            printed = words
            typer.echo(words)
        if now.is_seen and now.phase == phase:
            return
        if now.is_seen and now.phase in FINISHED:
            raise Problem(f"{now.name} has {now.phase.lower()} meanwhile ({now.reason})")
        time.sleep(POLL_SECONDS)


def _again(kubectl: Kubectl, job: Job) -> Job:
    try:
        now = read(kubectl.get(RLJOBS, job.name))
    except NotFound:
        raise Problem(f"{job.name} was deleted meanwhile") from None
    if now.uid != job.uid:
        raise Problem(f"{job.name} was deleted meanwhile, and another job has its name")
    return now
