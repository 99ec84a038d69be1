"""`kubectl rljob logs` and `checkpoints`: what is on the job's volume, by way of the head pod's agent, which outlives
Ray. The other containers print Ray's own output.
"""

from typing import Annotated

import typer

from rljob_operator import names
from rljob_operator.kubectl.calls import Context, Kubectl, Manifest, Namespace, Problem
from rljob_operator.kubectl.jobs import Job, job_named, pod_of


def logs(
    name: str,
    worker: Annotated[
        int | None,
        typer.Option(min=0, help="Of this worker's container, counted from 0 by creation.", show_default=False),
    ] = None,
    head: Annotated[bool, typer.Option("--head", help="Of the head's container: Ray.")] = False,
    agent: Annotated[bool, typer.Option("--agent", help="Of the agent's container.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the attempt, or the container, before this one.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """What the driver of the newest attempt logs, or a container."""
    if (worker is not None) + head + agent > 1:
        raise Problem("--worker, --head and --agent exclude each other; give one of them")
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    if worker is None and not head and not agent:
        pod = _pod_of_driver(kubectl, job)
        return kubectl.show(*_in_agent(pod, _drivers_log(job, follow=follow, previous=previous)))
    pod = pod_of(kubectl, job, names.HEAD) if worker is None else pod_of(kubectl, job, names.WORKER, worker)
    container = names.AGENT_CONTAINER if agent else names.HEAD_CONTAINER if head else names.WORKER_CONTAINER
    flags = [flag for flag, wanted in (("--follow", follow), ("--previous", previous)) if wanted]
    return kubectl.show("logs", pod["metadata"]["name"], f"--container={container}", *flags)


def checkpoints(name: str, namespace: Namespace = None, context: Context = None) -> None:
    """What the job can continue from. The head pod reads every file: large checkpoints take a while."""
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    try:
        pod = pod_of(kubectl, job, names.HEAD)
    except Problem as problem:
        saved = job.part("checkpoint")
        known = f"the operator last saw that of step {saved['step']}: {saved['path']}" if saved else "none is known"
        raise Problem(f"{problem}; {known}") from None
    return kubectl.show(*_in_agent(pod, ["rljob", "checkpoints", names.VOLUME_FOLDER]))


def _in_agent(pod: Manifest, command: list[str]) -> list[str]:
    return ["exec", pod["metadata"]["name"], f"--container={names.AGENT_CONTAINER}", "--", *command]


def _pod_of_driver(kubectl: Kubectl, job: Job) -> Manifest:
    if not job.status.get("attempt"):
        raise Problem(f"{job.name} has started no driver yet: {job.message or job.unseen}")
    try:
        return pod_of(kubectl, job, names.HEAD)
    except Problem as gone:
        raise Problem(f"{gone}; the logs are on the volume {job.claim}, in the folder logs") from None


def _drivers_log(job: Job, *, follow: bool, previous: bool) -> list[str]:
    command = ["rljob", "logs", names.VOLUME_FOLDER]
    if previous:
        before = job.status["attempt"] - 1
        if not before:
            raise Problem(f"{job.name} is at its first attempt; leave out --previous")
        command.append(f"--attempt={before}")
    return [*command, *(["--follow"] if follow else ())]
