"""The operator ends, in five phases of a job, and is rolled, as by a new version: no job notices."""

import json
import time

import pytest

from e2e.cluster.access import Access
from e2e.cluster.helm import Helm
from e2e.cluster.layout import Layout
from e2e.cluster_chaos.faults import OPERATOR_CONTAINER
from e2e.nodes import containers, release
from e2e.scenarios.conftest import own_cluster_only
from e2e.scenarios.job import KILL_DRIVER, LONG, Job

pytestmark = [pytest.mark.timeout(1800), own_cluster_only("ends the operator's pods, on which others' jobs may depend")]


def kill_operator(cluster: Access, layout: Layout) -> None:
    """All of its replicas, by SIGKILL, so nobody gives the Lease back. Their pods start them again."""
    pods = json.loads(cluster.kubectl("get", "pods", *release.PODS, "--output=json"))["items"]
    running = list(containers.running(pods, OPERATOR_CONTAINER))
    assert running
    for each in running:
        containers.kill(layout.folder, each)


def operators(cluster: Access) -> set[str]:
    """Names of its pods, those that are ending among them."""
    return set(cluster.kubectl("get", "pods", *release.PODS, "--output=name").split())


def test_the_operator_is_killed_while_a_job_starts_runs_recovers_suspends_and_is_suspended(
    cluster: Access, layout: Layout, job: Job
) -> None:
    """`make chaos-operator` kills it at every write of a life, in the other phases too, where drivers are played."""
    job.apply(**LONG)
    job.reaches("Starting")
    kill_operator(cluster, layout)
    job.trains()
    pods = set(job.pods())
    kill_operator(cluster, layout)
    job.trains(beyond=job.step + 4)
    assert set(job.pods()) == pods

    job.run_in("head", "python", "-c", KILL_DRIVER)
    job.reaches("Recovering")
    kill_operator(cluster, layout)
    job.eventually(lambda: job.runs(attempt=2), "second attempt")
    job.trains(beyond=job.step + 2)
    assert set(job.pods()) == pods

    job.patch(suspend=True)
    job.reaches("Suspending")
    kill_operator(cluster, layout)
    job.reaches("Suspended")
    assert job.pods() == []
    kill_operator(cluster, layout)
    job.patch(suspend=False)

    status = job.succeeds()
    assert (status["restarts"], status["attempt"]) == (1, 3)


def test_the_operator_is_rolled_while_a_job_trains(cluster: Access, helm: Helm, job: Job) -> None:
    job.apply(**LONG)
    job.trains()
    pods = set(job.pods())
    before = operators(cluster)
    release.install(cluster, helm.home, podAnnotations={"rolled": f"{time.time():.0f}"})
    job.eventually(lambda: not before & operators(cluster), "end of the older pods")
    job.trains(beyond=job.step + 4)
    assert set(job.pods()) == pods

    status = job.succeeds()
    assert (status["restarts"], status["attempt"]) == (0, 1)
