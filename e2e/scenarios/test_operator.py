"""The operator is killed, in every phase that a job passes, and is replaced by another version: no job notices."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.cluster.access import Access
from e2e.cluster.helm import Helm
from e2e.cluster.layout import Layout
from e2e.cluster_chaos.faults import OPERATOR_CONTAINER
from e2e.cluster_chaos.leftovers import left_by
from e2e.nodes import containers, release
from e2e.nodes.containers import Container
from e2e.nodes.images import NEWER_OPERATOR, NEWER_VERSION
from e2e.scenarios.conftest import Report, own_cluster_only
from e2e.scenarios.job import LONG, LONGER, Job
from e2e.scenarios.removal import leaves_nothing
from e2e.scenarios.test_mistakes import reward
from rljob_api.conditions import Reason
from rljob_operator.names import JOB_LABEL, RENDERER_ANNOTATION, job_config

pytestmark = [pytest.mark.timeout(2400), own_cluster_only("ends the operator's pods, on which others' jobs may depend")]


HELD = "e2e.rljob.dev/held"
"""A finalizer: Kubernetes waits for its writer before it deletes an object."""

LASTING = ("phase", "attempt", "restarts", "completionTime", "progress", "checkpoint")
"""What the status of a finished job says for ever."""


def kill_operator(cluster: Access, layout: Layout, job: Job, phase: str) -> dict[str, Any]:
    """All of its replicas by SIGKILL, which leaves the Lease with the dead, as soon as the job is in that phase.

    Returns the status that they left: no operator writes another one before the Lease runs out. Their pods go too: a
    kubelet waits longer and longer before it starts a container again that ends again and again.

    Raises AssertionError where the job was in another phase when they were dead.
    """
    running = job.eventually(lambda: all_operators(cluster), "running containers of all operators")
    job.reaches(phase)
    for container in running:
        containers.kill(layout.folder, container)
    left = job.status
    assert left.get("phase") == phase, f"the kill came too late: {left}"
    cluster.kubectl("delete", "pods", *release.PODS, "--force", "--grace-period=0")
    return left


def all_operators(cluster: Access) -> list[Container]:
    """Containers of the replicas, once all of them run: one that begins later would outlive a kill."""
    wanted = cluster.kubectl(
        "get", "deployment/rljob-operator", f"--namespace={release.NAMESPACE}", "--output=jsonpath={.spec.replicas}"
    )
    pods = json.loads(cluster.kubectl("get", "pods", *release.PODS, "--output=json"))["items"]
    running = list(containers.running(pods, OPERATOR_CONTAINER))
    return running if len(running) == len(pods) == int(wanted) else []


@contextmanager
def an_earlier_job_is_held(job: Job) -> Iterator[None]:
    """One of that name was deleted before it began, and another finalizer keeps its ConfigMap until the end of this.

    Kubernetes alone has removed all of it within a second or two.
    """
    config = f"configmap/{job_config(job.name)}"
    job.apply(checkpoint={"volume": {"retain": False}})
    job.eventually(lambda: job.kubectl("get", config, "--ignore-not-found", "--output=name"), "ConfigMap")
    finalizers(job, config, [HELD])
    try:
        job.kubectl("delete", "rljob", job.name, "--timeout=300s")
        yield
    finally:
        finalizers(job, config, [])


def finalizers(job: Job, what: str, names: list[str]) -> None:
    job.kubectl("patch", what, "--type=merge", f"--patch={json.dumps({'metadata': {'finalizers': names}})}")


def operators(cluster: Access) -> set[str]:
    """Names of its pods, those that are ending among them."""
    return set(cluster.kubectl("get", "pods", *release.PODS, "--output=name").split())


def versions(cluster: Access) -> set[str]:
    """Of the operator, as its pods' logs tell."""
    logs = [cluster.kubectl("logs", pod, f"--namespace={release.NAMESPACE}") for pod in operators(cluster)]
    lines = [line for log in logs for line in log.splitlines() if '"operator_started"' in line]
    return {json.loads(line)["version"] for line in lines}


RENDERER = "from rljob_operator.render.ray_cluster import RENDERER_VERSION as found; print(found)"


def renderer(cluster: Access) -> str:
    """What the operators that run write into the RayClusters of new jobs."""
    pod = min(operators(cluster))
    return cluster.kubectl(
        "exec", pod, f"--namespace={release.NAMESPACE}", "--", "/opt/rljob/bin/python", "-c", RENDERER
    ).strip()


def cluster_of(job: Job) -> tuple[str, str, str]:
    """Uid and generation of its RayCluster, and what rendered that."""
    (found,) = json.loads(job.kubectl("get", "rayclusters", "--output=json"))["items"]
    metadata = found["metadata"]
    return metadata["uid"], str(metadata["generation"]), metadata["annotations"][RENDERER_ANNOTATION]


def test_the_operator_is_killed_in_every_phase_of_a_job(
    cluster: Access, layout: Layout, job: Job, report: Report
) -> None:
    """Of a life with a name that is not free yet, a lost head and a suspension; how it ends is the next one's story.
    `make chaos-operator` kills it at every write of such a life, where drivers are played.
    """
    with an_earlier_job_is_held(job):
        job.apply(**LONGER)
        kill_operator(cluster, layout, job, "Pending")
        assert job.conditions["Ready"]["reason"] == Reason.WAITING_FOR_REMOVAL
    kill_operator(cluster, layout, job, "Starting")
    job.trains()
    pods = set(job.pods())
    kill_operator(cluster, layout, job, "Running")
    job.trains(beyond=job.step + 4)
    assert set(job.pods()) == pods

    (head,), saved = job.pods("head"), job.saved
    job.kubectl("delete", head, "--force", "--grace-period=0")
    lost = time.time()
    job.eventually(lambda: Reason.RAY_LOST in job.events(), "event of the lost head")
    kill_operator(cluster, layout, job, "Recovering")
    report(job.seconds_to_next_update(lost, attempt=2))
    job.resumes(attempt=2, after=saved)

    job.patch(suspend=True)
    kill_operator(cluster, layout, job, "Suspending")
    saved = job.reaches("Suspended")["checkpoint"]["step"]
    assert job.pods() == []
    kill_operator(cluster, layout, job, "Suspended")
    job.patch(suspend=False)
    job.eventually(lambda: job.runs(attempt=3), "attempt 3")
    job.resumes(attempt=3, after=saved)

    status = job.succeeds_after("RayLost")
    assert (status["restarts"], status["attempt"]) == (1, 3)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_the_operator_is_killed_while_a_finished_job_is_cleaned_up(
    cluster: Access, layout: Layout, job: Job, phase: str
) -> None:
    """First before anything of it is deleted, then while its pods end. How it ended stands, and everything goes."""
    wrong = {} if phase == "Succeeded" else {"rewards": reward("    return float('nan')\n")}
    job.apply(**wrong, ttlAfterFinished="20s")
    left = kill_operator(cluster, layout, job, phase)
    if phase == "Succeeded":
        assert left["progress"]["reward"]
        assert left["checkpoint"]["step"] == left["progress"]["step"]
    assert job.pods("head"), "nothing is deleted yet"
    assert job.pods("worker")

    job.eventually(lambda: not job.kubectl("get", "rayclusters", "--output=name"), "end of the RayCluster")
    assert lasting(kill_operator(cluster, layout, job, phase)) == lasting(left)
    job.eventually(lambda: not job.pods(), "end of the pods")
    policy = ("get", "networkpolicies", f"--selector={JOB_LABEL}={job.name}", "--output=name")
    job.eventually(lambda: not job.kubectl(*policy), "end of the NetworkPolicy, which is the next operator's work")
    assert lasting(job.status) == lasting(left)
    assert job.holds(phase)
    assert job.events().count(job.conditions[phase]["reason"]) <= 1, "a death may lose an event"


def lasting(status: dict[str, Any]) -> dict[str, Any]:
    return {name: status.get(name) for name in LASTING}


def test_the_operator_is_killed_while_a_job_is_deleted(cluster: Access, layout: Layout, job: Job) -> None:
    before = set(left_by(job))
    job.apply(**LONG, checkpoint={"volume": {"retain": False}})
    job.trains()
    job.kubectl("delete", "rljob", job.name, "--wait=false")
    kill_operator(cluster, layout, job, "Deleting")
    leaves_nothing(job, before)


def test_the_operator_is_rolled_to_another_version_and_back_while_a_job_trains(
    cluster: Access, helm: Helm, job: Job
) -> None:
    job.apply(training={"steps": 400})
    job.trains()
    pods, before, older = set(job.pods()), operators(cluster), versions(cluster)
    rendered = cluster_of(job)
    repository, _, tag = NEWER_OPERATOR.rpartition(":")
    try:
        release.install(cluster, helm.home, image={"repository": repository, "tag": tag})
        job.eventually(lambda: not before & operators(cluster), "end of the older version")
        assert versions(cluster) == {NEWER_VERSION}
        assert NEWER_VERSION not in older
        assert renderer(cluster) == NEWER_VERSION != rendered[-1]
        job.trains(beyond=job.step + 4)
        assert (set(job.pods()), cluster_of(job)) == (pods, rendered)
    finally:
        newer = operators(cluster)
        release.install(cluster, helm.home)

    job.eventually(lambda: not newer & operators(cluster), "end of the newer version")
    assert versions(cluster) == older
    assert job.phase == "Running", "it is rolled back while the job trains"
    job.trains(beyond=job.step + 4)
    assert (set(job.pods()), cluster_of(job)) == (pods, rendered)
    status = job.succeeds()
    assert (status["restarts"], status["attempt"]) == (0, 1)
