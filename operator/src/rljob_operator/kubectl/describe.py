"""`kubectl rljob describe`: what a job does and why, in sentences. `kubectl describe` adds conditions and events."""

from collections.abc import Iterator

import typer

from rljob_api.printable import printable
from rljob_operator.kubectl.calls import Context, Kubectl, Namespace
from rljob_operator.kubectl.jobs import Job, job_named

_VISIBILITY = "/apis/visibility.kueue.x-k8s.io/v1beta2"

_CURES = {
    "restart_driver": "the driver is restarted on the living cluster",
    "replace_pods": "the worker pods are replaced",
    "rebuild_cluster": "the Ray cluster is rebuilt",
}

Facts = Iterator[tuple[str, str]]


def describe(name: str, namespace: Namespace = None, context: Context = None) -> None:
    """What the job does and why: reason and remedy, attempts, restart budget, progress, checkpoint."""
    kubectl = Kubectl(namespace, context)
    for label, value in _facts(kubectl, job_named(kubectl, name)):
        typer.echo(printable(f"{label:<12}{value}"))


def _facts(kubectl: Kubectl, job: Job) -> Facts:
    yield "Name", f"{job.namespace}/{job.name}"
    yield from _phase(job)
    yield from _queue(kubectl, job)
    yield from _recovery(job)
    if avoided := [f"{each['name']} ({each['reason']})" for each in job.status.get("excludedNodes", ())]:
        yield "Excluded", f"{', '.join(avoided)}; suspend and resume the job to use these nodes again"
    yield "Progress", ", ".join(_progress(job)) or "none yet"
    saved = job.part("checkpoint")
    yield "Checkpoint", f"step {saved['step']}, {job.ago(saved['time'])} ago: {saved['path']}" if saved else "none yet"
    if job.part("cluster") or job.status.get("attempt"):
        yield "Volume", f"PersistentVolumeClaim {job.claim}"


def _phase(job: Job) -> Facts:
    if job.other_manager is not None:
        yield "Manager", f"{job.other_manager}, by spec.managedBy: rljob-operator leaves the job alone"
    elif not job.phase:
        yield "Phase", "none: no operator has seen it; check that rljob-operator runs and watches this namespace"
    if not job.phase:
        return
    yield "Phase", job.phase
    if not job.is_seen:
        yield "", "the operator has not seen the newest change of the spec yet"
    if job.reason:
        yield "Reason", f"{job.reason}: {job.message}" if job.message else job.reason
    if advice := _advice(job):
        yield "", advice


def _queue(kubectl: Kubectl, job: Job) -> Facts:
    workload = job.part("workload")
    if not (queue := workload.get("queue")):
        return
    place = _place(kubectl, job.namespace, queue, workload["name"]) if job.phase == "Queued" else ""
    admitted = f"; quota of ClusterQueue {workload['clusterQueue']}" if workload.get("clusterQueue") else ""
    yield "Queue", f"{queue}{place}{admitted}"
    if evictions := workload.get("evictions"):
        lost = workload.get("lostSteps")
        steps = "" if lost is None else f"; the last one lost {lost} steps"
        yield "Evictions", f"{evictions}{steps}"


def _place(kubectl: Kubectl, namespace: str, queue: str, workload: str) -> str:
    """By Kueue's visibility API, which counts from 0; empty if it is not served, or the user may not read it."""
    found = kubectl.raw(f"{_VISIBILITY}/namespaces/{namespace}/localqueues/{queue}/pendingworkloads") or {}
    waiting = {each["metadata"]["name"]: each["positionInLocalQueue"] for each in found.get("items", ())}
    return f"; place {waiting[workload] + 1} of {len(waiting)}" if workload in waiting else ""


def _advice(job: Job) -> str:
    """The reason's row of docs/conditions.md, unless all is well."""
    if job.phase in ("Running", "Succeeded", "Suspended"):
        return ""
    from rljob_api.conditions import Reason

    known = {str(reason): reason for reason in Reason}
    return f"{known[job.reason].meaning} {known[job.reason].remedy}".strip() if job.reason in known else ""


def _recovery(job: Job) -> Facts:
    recovery, status = job.part("recovery"), job.status
    if (action := recovery.get("action")) is not None:
        wait = job.until(recovery.get("notBefore"))
        when = "" if wait in ("", "0s") else f"; the next attempt starts in {wait} or later"
        yield "Recovery", f"{_CURES.get(action, action)}{when}"
    if status.get("attempt"):
        yield "Attempt", f"{status['attempt']}; its driver is {job.part('driver').get('state', 'unknown')}"
        yield "Restarts", f"{status.get('restarts', 0)} in all; {_budget(job)}"


def _budget(job: Job) -> str:
    """A new checkpoint resets the count, but the status says so only at the next failure."""
    recovery, most = job.part("recovery"), job.spec.get("recovery", {}).get("maxRestarts")
    counted, saved = recovery.get("durableStep", 0), job.part("checkpoint").get("step", 0)
    charged = recovery.get("charged", 0) if saved <= counted else 0
    since = max(counted, saved)
    return f"{charged} of {most} since {f'the checkpoint of step {since}' if since else 'the beginning'}"


def _progress(job: Job) -> Iterator[str]:
    progress = job.part("progress")
    if progress.get("totalSteps"):
        yield f"step {progress.get('step', 0)}/{progress['totalSteps']}"
    for name, words in (("reward", "reward"), ("validationReward", "validation")):
        if progress.get(name) is not None:
            yield f"{words} {progress[name]:.3f}"
    if job.phase == "Running" and progress.get("eta"):
        yield f"done in {job.until(progress['eta'])}"
