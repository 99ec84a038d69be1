"""The operator ends, in four phases of a job, and is replaced by another version: no job notices."""

import time

import pytest

from e2e.cluster.access import Access
from e2e.cluster.helm import Helm
from e2e.nodes import release
from e2e.scenarios.conftest import own_cluster_only
from e2e.scenarios.job import LONG, Job

pytestmark = [pytest.mark.timeout(1800), own_cluster_only("ends the operator's pods, on which others' jobs may depend")]


def kill_operator(cluster: Access) -> None:
    """All of its replicas, with no time to say goodbye."""
    cluster.kubectl("delete", "pods", *release.PODS, "--force", "--grace-period=0")


def operators(cluster: Access) -> set[str]:
    """Names of its pods, those that are ending among them."""
    return set(cluster.kubectl("get", "pods", *release.PODS, "--output=name").split())


def test_the_operator_is_killed_while_a_job_starts_runs_suspends_and_is_suspended(cluster: Access, job: Job) -> None:
    """In phases Starting, Running, Suspending and Suspended. `make chaos-operator` kills it at every write of a life,
    in the other phases too, where drivers are played.
    """
    job.apply(**LONG)
    job.reaches("Starting")
    kill_operator(cluster)
    job.trains()
    pods = set(job.pods())
    kill_operator(cluster)
    job.trains(beyond=job.step + 4)
    assert set(job.pods()) == pods

    job.patch(suspend=True)
    job.reaches("Suspending")
    kill_operator(cluster)
    job.reaches("Suspended")
    assert job.pods() == []
    kill_operator(cluster)
    job.patch(suspend=False)

    status = job.reaches("Succeeded")
    assert (status["restarts"], status["attempt"]) == (0, 2)


def test_the_operator_is_rolled_while_a_job_trains(cluster: Access, helm: Helm, job: Job) -> None:
    job.apply(**LONG)
    job.trains()
    pods = set(job.pods())
    before = operators(cluster)
    release.install(cluster, helm.home, podAnnotations={"rolled": f"{time.time():.0f}"})
    job.eventually(lambda: not before & operators(cluster), "end of the older version")
    job.trains(beyond=job.step + 4)
    assert set(job.pods()) == pods

    status = job.reaches("Succeeded")
    assert (status["restarts"], status["attempt"]) == (0, 1)
