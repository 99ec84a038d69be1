"""The operator is killed, in every phase that a job passes, and is replaced by another version: no job notices."""

import json
import time

import pytest

from e2e.cluster.access import Access
from e2e.cluster.helm import Helm
from e2e.cluster.layout import Layout
from e2e.cluster_chaos.faults import OPERATOR_CONTAINER
from e2e.cluster_chaos.leftovers import left_by
from e2e.nodes import containers, release
from e2e.nodes.images import NEWER_OPERATOR, NEWER_VERSION
from e2e.scenarios.conftest import Report, own_cluster_only
from e2e.scenarios.job import LONG, LONGER, Job
from e2e.scenarios.removal import leaves_nothing
from rljob_operator.names import RENDERER_ANNOTATION

pytestmark = [pytest.mark.timeout(2400), own_cluster_only("ends the operator's pods, on which others' jobs may depend")]


def kill_operator(cluster: Access, layout: Layout) -> None:
    """All of its replicas by SIGKILL, which leaves the Lease with the dead.

    Their pods go too: a kubelet waits longer and longer before it starts a container again that ends again and again.
    """
    pods = json.loads(cluster.kubectl("get", "pods", *release.PODS, "--output=json"))["items"]
    running = list(containers.running(pods, OPERATOR_CONTAINER))
    assert running
    for container in running:
        containers.kill(layout.folder, container)
    cluster.kubectl("delete", "pods", *release.PODS, "--force", "--grace-period=0")


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
    """Of a life with a lost head and a suspension; before its first one, Pending, no operator is there to see the job.
    `make chaos-operator` kills it at every write of such a life, where drivers are played.
    """
    kill_operator(cluster, layout)
    job.apply(**LONGER)
    job.reaches("Starting")
    kill_operator(cluster, layout)
    job.trains()
    pods = set(job.pods())
    kill_operator(cluster, layout)
    job.trains(beyond=job.step + 4)
    assert set(job.pods()) == pods

    (head,), saved = job.pods("head"), job.saved
    job.kubectl("delete", head, "--force", "--grace-period=0")
    lost = time.time()
    job.reaches("Recovering")
    job.eventually(lambda: "RayLost" in job.events(), "event RayLost")
    kill_operator(cluster, layout)
    report(job.seconds_to_next_update(lost, attempt=2))
    job.resumes(attempt=2, after=saved)

    job.patch(suspend=True)
    job.reaches("Suspending")
    kill_operator(cluster, layout)
    saved = job.reaches("Suspended")["checkpoint"]["step"]
    assert job.pods() == []
    kill_operator(cluster, layout)
    job.patch(suspend=False)
    job.eventually(lambda: job.runs(attempt=3), "attempt 3")
    job.resumes(attempt=3, after=saved)

    status = job.succeeds_after("RayLost")
    assert (status["restarts"], status["attempt"]) == (1, 3)


def test_the_operator_is_killed_while_a_job_is_deleted(cluster: Access, layout: Layout, job: Job) -> None:
    before = set(left_by(job))
    job.apply(**LONG, checkpoint={"volume": {"retain": False}})
    job.trains()
    job.kubectl("delete", "rljob", job.name, "--wait=false")
    kill_operator(cluster, layout)
    leaves_nothing(job, before)


def test_the_operator_is_rolled_to_another_version_and_back_while_a_job_trains(
    cluster: Access, helm: Helm, job: Job
) -> None:
    job.apply(**LONGER)
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
        release.install(cluster, helm.home)

    status = job.succeeds()
    assert (status["restarts"], status["attempt"]) == (0, 1)
