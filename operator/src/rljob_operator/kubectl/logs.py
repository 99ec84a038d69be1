"""`kubectl rljob logs`.

A driver logs to the job's volume, attempt by attempt. The agent's container shows that, for it outlives Ray; what the
other containers print is Ray's.
"""

from typing import Annotated

import typer

from rljob_operator import names
from rljob_operator.kubectl.calls import Context, Kubectl, Manifest, Namespace, Problem
from rljob_operator.kubectl.jobs import Job, job_named
from rljob_operator.kubectl.pods import Pods, pods_of


def logs(
    name: str,
    worker: Annotated[
        int | None, typer.Option(min=0, help="Of this worker's container, as describe counts them.", show_default=False)
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
        raise Problem("--worker, --head and --agent exclude each other; name one")
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    pods = pods_of(kubectl, job)
    if worker is None and not head and not agent:
        return kubectl.show(*in_agent(_pod_of_driver(job, pods), _drivers_log(job, follow=follow, previous=previous)))
    pod, container = _container(pods, worker, agent=agent)
    flags = [flag for flag, wanted in (("--follow", follow), ("--previous", previous)) if wanted]
    return kubectl.show("logs", pod["metadata"]["name"], f"--container={container}", *flags)


def in_agent(pod: Manifest, command: list[str]) -> list[str]:
    return ["exec", pod["metadata"]["name"], f"--container={names.AGENT_CONTAINER}", "--", *command]


def _pod_of_driver(job: Job, pods: Pods) -> Manifest:
    if not job.status.get("attempt"):
        unseen = f"{job.other_manager} looks after it" if job.other_manager else "no operator has seen it"
        raise Problem(f"{job.name} has started no driver yet: {job.message or unseen}")
    try:
        return pods.head
    except Problem as gone:
        claim = (job.spec.get("checkpoint", {}).get("volume") or {}).get("existingClaim") or names.claim(job.name)
        raise Problem(f"{gone}; the logs are on the volume {claim}, in the folder logs") from None


def _drivers_log(job: Job, *, follow: bool, previous: bool) -> list[str]:
    command = ["rljob", "logs", names.VOLUME_FOLDER]
    if previous:
        before = job.status["attempt"] - 1
        if not before:
            raise Problem(f"{job.name} is at its first attempt; leave out --previous")
        command.append(f"--attempt={before}")
    return [*command, *(["--follow"] if follow else ())]


def _container(pods: Pods, worker: int | None, *, agent: bool) -> tuple[Manifest, str]:
    if worker is not None:
        return pods.worker(worker), names.WORKER_CONTAINER
    return pods.head, names.AGENT_CONTAINER if agent else names.HEAD_CONTAINER
