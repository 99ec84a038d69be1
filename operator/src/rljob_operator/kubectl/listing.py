"""`kubectl rljob list`."""

from collections.abc import Iterator
from typing import Annotated

import typer

from rljob_operator.kubectl.calls import RLJOBS, Context, Kubectl, Namespace
from rljob_operator.kubectl.jobs import Job, read
from rljob_operator.kubectl.show import Output, number, show, show_objects, table

HEAD = ("NAME", "PHASE", "STEP", "REWARD", "ETA", "RESTARTS", "CHECKPOINT", "AGE")

_SAYS_ALL = ("Running", "Succeeded", "Suspended", "Deleting")
"""Phases that need no reason."""


def list_jobs(
    namespace: Namespace = None,
    context: Context = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all of them.")] = False,
    output: Output = None,
) -> None:
    """How far each job is and how it does."""
    kubectl = Kubectl(namespace, context)
    found = kubectl.get(RLJOBS, *(["--all-namespaces"] if all_namespaces else ()))
    if output is not None:
        return show_objects(found, output)
    jobs = [read(item) for item in found["items"]]
    if not jobs:
        where = "any namespace" if all_namespaces else f"namespace {kubectl.current_namespace()}"
        return typer.echo(f"there are no RLJobs in {where}", err=True)
    head = ("NAMESPACE", *HEAD) if all_namespaces else HEAD
    return show(table(head, [(job.namespace, *_row(job)) if all_namespaces else tuple(_row(job)) for job in jobs]))


def _row(job: Job) -> Iterator[str]:
    saved = job.part("checkpoint")
    yield job.name
    yield _phase(job)
    yield job.step or "-"
    yield number(job.part("progress").get("reward")) or "-"
    yield job.eta or "-"
    yield str(job.status.get("restarts", 0))
    yield f"{saved['step']} ({job.ago(saved['time'])} ago)" if saved else "-"
    yield job.ago(job.manifest["metadata"]["creationTimestamp"])


def _phase(job: Job) -> str:
    if not job.phase:
        return f"({job.unseen})"
    return job.phase if job.phase in _SAYS_ALL or not job.reason else f"{job.phase} ({job.reason})"
