"""`kubectl rljob checkpoints`.

The checkpoints are on the volume. Where a head pod has it mounted, `rljob checkpoints` looks there; else the newest one
that the operator has seen is all that is known.
"""

import typer

from rljob_operator import names
from rljob_operator.kubectl.calls import Context, Kubectl, Namespace, Problem
from rljob_operator.kubectl.jobs import Job, job_named
from rljob_operator.kubectl.logs import in_agent
from rljob_operator.kubectl.pods import pods_of, state_of
from rljob_operator.kubectl.show import show, table


def checkpoints(name: str, namespace: Namespace = None, context: Context = None) -> None:
    """What the job can continue from. With a head pod, every file is read: large checkpoints take a while."""
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    try:
        head = pods_of(kubectl, job).head
    except Problem:
        return _from_status(job, "there is no head pod that has the volume")
    if not state_of(head).startswith("Running"):
        return _from_status(job, f"the head pod, which has the volume, is {state_of(head)}")
    return kubectl.show(*in_agent(head, ["rljob", "checkpoints", names.VOLUME_FOLDER]))


def _from_status(job: Job, why: str) -> None:
    saved = job.part("checkpoint")
    typer.echo(f"{why}: this is the newest that the operator has seen", err=True)
    if not saved:
        raise Problem(f"{job.name} has no checkpoint that is known")
    show(table(("step", "age", "path"), [(str(saved["step"]), job.ago(saved["time"]), saved["path"])]))
