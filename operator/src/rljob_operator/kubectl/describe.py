"""`kubectl rljob describe`: the story of one job."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import typer

from rljob_operator import names
from rljob_operator.kubectl.calls import Context, Kubectl, Manifest, Namespace
from rljob_operator.kubectl.events import cells, events_about, time_of
from rljob_operator.kubectl.jobs import FINISHED, Job, job_named
from rljob_operator.kubectl.pods import pods_of, ready_of, restarts_of, role_of, state_of
from rljob_operator.kubectl.show import Output, grid, number, show, show_objects, span, table

EVENTS = 10

_CURES = {
    "restart_driver": "the driver is restarted on the living cluster",
    "replace_pods": "the worker pods are replaced",
    "rebuild_cluster": "the Ray cluster is rebuilt",
}

_DRIVERS = {
    "Reserved": "whose driver is being submitted",
    "Submitted": "whose driver Ray has, or had when it was last heard of",
    "Ended": "whose driver has ended",
}

Facts = Iterator[tuple[str, str]]


def describe(name: str, namespace: Namespace = None, context: Context = None, output: Output = None) -> None:
    """Where the job is and why: conditions, attempts, recovery, progress, checkpoint, pods, events."""
    kubectl = Kubectl(namespace, context)
    job = job_named(kubectl, name)
    with ThreadPoolExecutor() as pool:
        asked, told = pool.submit(pods_of, kubectl, job), pool.submit(kubectl.get, "events")
        pods, events = asked.result().items, events_about(job, told.result()["items"])
    if output is not None:
        return show_objects({"apiVersion": "v1", "kind": "List", "items": [job.manifest, *pods, *events]}, output)
    show(grid(_facts(job)))
    _section("Conditions", ("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE"), list(_conditions(job)))
    _section("Pods", ("ROLE", "NAME", "READY", "RESTARTS", "AGE", "NODE", "STATE"), list(_pods(job, pods)))
    return _section("Events", ("AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"), list(_events(job, events)))


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        typer.echo(f"\n{title}")
        show(table(head, rows))


def _facts(job: Job) -> Facts:
    yield "Name", f"{job.namespace}/{job.name}"
    yield from _phase(job)
    if namespace := job.status.get("operator"):
        yield "Operator", f"in namespace {namespace}"
    yield from _recovery(job)
    yield "Progress", ", ".join(_progress(job)) or "none yet"
    saved = job.part("checkpoint")
    yield "Checkpoint", f"step {saved['step']}, {job.ago(saved['time'])} ago: {saved['path']}" if saved else "none yet"
    yield from _cluster(job)
    yield from _times(job)


def _phase(job: Job) -> Facts:
    if job.other_manager is not None:
        yield "Manager", f"{job.other_manager}, by spec.managedBy: rljob-operator leaves the job alone"
    if not job.phase:
        if job.other_manager is None:
            yield "Phase", "none: no operator has seen it; does rljob-operator run, and watch this namespace?"
        return
    yield "Phase", f"{job.phase}{_age(job)}"
    if not job.is_seen:
        yield "", "the operator has not seen the newest change of the spec yet"
    if job.reason:
        yield "Reason", f"{job.reason}: {job.message}" if job.message else job.reason
    if advice := _advice(job):
        yield "", advice


def _age(job: Job) -> str:
    if began := job.phase_began:
        return f", {job.ago(began)} ago" if job.phase in FINISHED else f", for {job.ago(began)}"
    return f"; reconciling for {job.ago(job.reconciling_since)}" if job.reconciling_since else ""


def _advice(job: Job) -> str:
    """What docs/conditions.md says of the reason, where something is amiss."""
    if job.phase in ("Running", "Succeeded", "Suspended"):
        return ""
    from rljob_api.conditions import Reason

    known = {str(reason): reason for reason in Reason}
    return f"{known[job.reason].meaning} {known[job.reason].remedy}".strip() if job.reason in known else ""


def _recovery(job: Job) -> Facts:
    recovery, status, driver = job.part("recovery"), job.status, job.part("driver")
    if (action := recovery.get("action")) is not None:
        wait = job.until(recovery.get("notBefore"))
        when = "" if wait in ("", "0s") else f"; the next attempt starts in {wait} at the earliest"
        yield "Recovery", f"{_CURES.get(action, action)}{when}"
    if driver.get("stopRequested") and driver["state"] != "Ended":
        yield "Stopping", f"the driver was asked for a checkpoint {job.ago(driver['stopRequested'])} ago"
    if status.get("attempt"):
        yield "Attempt", f"{status['attempt']}, {_DRIVERS.get(driver.get('state', ''), 'without a driver')}"
        yield "Restarts", f"{status.get('restarts', 0)} in all; {_budget(job)}"


def _budget(job: Job) -> str:
    """A new checkpoint begins the count anew, but the status says so only at the next failure."""
    recovery, most = job.part("recovery"), job.spec.get("recovery", {}).get("maxRestarts")
    counted, saved = recovery.get("durableStep", 0), job.part("checkpoint").get("step", 0)
    charged = recovery.get("charged", 0) if saved <= counted else 0
    since = max(counted, saved)
    return f"{charged} of {most} since {f'the checkpoint of step {since}' if since else 'the beginning'}"


def _progress(job: Job) -> Iterator[str]:
    progress = job.part("progress")
    if job.step:
        yield f"step {job.step} ({progress.get('percent', 0):.0f} %)"
    if progress.get("reward") is not None:
        yield f"reward {number(progress['reward'])}"
    if progress.get("validationReward") is not None:
        yield f"validation {number(progress['validationReward'])}"
    if progress.get("responseTokens"):
        yield f"{progress['responseTokens']:.0f} tokens a response"
    if progress.get("tokensPerSecond"):
        yield f"{progress['tokensPerSecond']:.0f} tokens/s"
    if job.phase == "Running" and progress.get("phase"):
        yield f"now {progress['phase']}"
    if job.eta:
        yield f"done in {job.eta}"


def _cluster(job: Job) -> Facts:
    shape, cluster = job.spec.get("cluster", {}), job.part("cluster")
    if cluster:
        gpus = f", {shape['gpusPerNode']} × {shape.get('gpuResource', 'GPU')} each" if shape.get("gpusPerNode") else ""
        yield "Cluster", f"{cluster.get('readyWorkers', 0)} of {cluster.get('desiredWorkers', 0)} workers ready{gpus}"
    volume = job.spec.get("checkpoint", {}).get("volume") or {}
    made = names.claim(job.name) if cluster or job.status.get("attempt") else None  # it is there before a RayCluster
    if claim := volume.get("existingClaim") or made:
        yield "Volume", f"PersistentVolumeClaim {claim}"


def _times(job: Job) -> Facts:
    yield "Created", f"{job.ago(job.manifest['metadata']['creationTimestamp'])} ago"
    if started := job.status.get("startTime"):
        yield "Started", f"{job.ago(started)} ago"
    if (ended := job.status.get("completionTime")) and job.phase in FINISHED:
        yield "Ended", f"{job.ago(ended)} ago"


def _conditions(job: Job) -> Iterator[tuple[str, ...]]:
    """Without the message of Ready, which stands above."""
    for each in job.status.get("conditions", ()):
        message = each.get("message", "")
        since = job.ago(each["lastTransitionTime"])
        yield each["type"], each["status"], since, each["reason"], "" if message == job.message else message


def _pods(job: Job, pods: Sequence[Manifest]) -> Iterator[tuple[str, ...]]:
    workers = -1
    for pod in pods:
        role = role_of(pod)
        workers += role == names.WORKER
        yield (
            f"{role} {workers}" if role == names.WORKER else role, pod["metadata"]["name"], ready_of(pod),
            str(restarts_of(pod)), job.ago(pod["metadata"]["creationTimestamp"]), pod["spec"].get("nodeName", "-"),
            state_of(pod),
        )  # fmt: skip


def _events(job: Job, events: Sequence[Manifest]) -> Iterator[tuple[str, ...]]:
    """The job's own and all warnings; kubectl rljob events has the others too."""
    told = [each for each in events if each["involvedObject"].get("kind") == "RLJob" or each.get("type") == "Warning"]
    for event in told[-EVENTS:]:
        yield span((job.now - time_of(event)).total_seconds()), *cells(event)
