"""`kubectl rljob suspend` and `resume`: spec.suspend, written as the user."""

import typer

from rljob_api.printable import printable
from rljob_operator.kubectl.calls import RLJOBS, Context, Kubectl, Namespace, Problem
from rljob_operator.kubectl.jobs import Job, job_named, read


def suspend(name: str, namespace: Namespace = None, context: Context = None) -> None:
    """Save a checkpoint, stop, and release everything but the volume."""
    _change(Kubectl(namespace, context), name, suspended=True)


def resume(name: str, namespace: Namespace = None, context: Context = None) -> None:
    """Start a suspended job again, from its newest checkpoint."""
    _change(Kubectl(namespace, context), name, suspended=False)


def _change(kubectl: Kubectl, name: str, *, suspended: bool) -> None:
    job = job_named(kubectl, name)
    if job.phase in ("Succeeded", "Failed"):
        raise Problem(f"{job.name} has {job.phase.lower()} ({job.reason}), which is final; create another job")
    if "deletionTimestamp" in job.manifest["metadata"]:
        raise Problem(f"{job.name} is being deleted, which is final; create another job once it is gone")
    if bool(job.spec.get("suspend")) != suspended:
        job = read(kubectl.patch(RLJOBS, job.name, {"spec": {"suspend": suspended}}))
    typer.echo(printable(f"{job.name}: spec.suspend is {'true' if suspended else 'false'}; {_what_follows(job)}"))


def _what_follows(job: Job) -> str:
    if job.other_manager is not None:
        return f"{job.other_manager} manages the job, by spec.managedBy"
    saved = job.part("checkpoint")
    return f"the newest checkpoint is of step {saved['step']}" if saved else "there is no checkpoint yet"
