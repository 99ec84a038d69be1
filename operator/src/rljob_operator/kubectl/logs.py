"""`kubectl rljob logs` and `checkpoints`: what is on the job's volume, by way of the head pod's agent, which outlives
Ray. `kubectl logs` itself prints what containers print, for example Ray.
"""

from typing import Annotated

import typer

from rljob_operator import names
from rljob_operator.kubectl.calls import Context, Kubectl, Namespace, Problem
from rljob_operator.kubectl.jobs import Job, head_pod, job_named


def logs(
    name: str,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the attempt before this one.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """What the driver of the newest attempt logs."""
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    command = _drivers_log(job, follow=follow, previous=previous)
    kubectl.show(*in_agent(kubectl, job, command, f"the logs are on the volume {job.claim}, in the folder logs"))


def checkpoints(name: str, namespace: Namespace = None, context: Context = None) -> None:
    """What the job can continue from. The head pod reads every file: large checkpoints take a while."""
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    saved = job.part("checkpoint")
    known = f"the operator last saw that of step {saved['step']}: {saved['path']}" if saved else "none is known"
    kubectl.show(*in_agent(kubectl, job, ["rljob", "checkpoints", names.VOLUME_FOLDER], known))


def in_agent(kubectl: Kubectl, job: Job, command: list[str], instead: str) -> list[str]:
    """What kubectl is called with to run the command in the agent. instead: what to say if there is no head pod."""
    pod = head_pod(kubectl, job)
    if pod is None:
        raise Problem(f"{job.name} has no head pod: the job is {job.phase or job.unseen}; {instead}")
    return ["exec", pod, f"--container={names.AGENT_CONTAINER}", "--", *command]


def _drivers_log(job: Job, *, follow: bool, previous: bool) -> list[str]:
    attempt = job.status.get("attempt", 0)
    if not attempt:
        raise Problem(f"{job.name} has started no driver yet: {job.message or job.unseen}")
    if previous and attempt == 1:
        raise Problem(f"{job.name} is at its first attempt; leave out --previous")
    command = ["rljob", "logs", names.VOLUME_FOLDER, *([f"--attempt={attempt - 1}"] if previous else ())]
    return [*command, *(["--follow"] if follow else ())]
