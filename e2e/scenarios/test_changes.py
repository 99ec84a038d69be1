"""What people do to a job while it trains: they edit it, delete it, and start another beside it."""

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import new_namespace
from e2e.cluster_chaos.leftovers import left_by
from e2e.nodes import release
from e2e.scenarios.job import LONG, Job
from e2e.scenarios.removal import leaves_nothing

pytestmark = pytest.mark.timeout(1800)


def test_a_job_is_deleted_in_the_middle_of_a_step(job: Job) -> None:
    before = set(left_by(job))
    job.apply(**LONG, checkpoint={"volume": {"retain": False}})
    job.trains()
    job.kubectl("delete", "rljob", job.name, "--timeout=300s")
    assert "Deleting" in job.events()
    leaves_nothing(job, before)


def test_the_spec_is_edited_while_the_job_trains(job: Job) -> None:
    job.apply(**LONG)
    job.trains()
    with pytest.raises(ClusterError, match="actor"):
        job.patch(actor={"learningRate": 1e-6})
    job.patch(training={"steps": 80})
    job.eventually(lambda: job.runs(attempt=2), "attempt 2")
    job.resumes(attempt=2, after=70)
    status = job.succeeds_after("MoreSteps")
    assert (status["progress"]["totalSteps"], status["restarts"], status["attempt"]) == (90, 0, 2)


def test_two_jobs_of_one_name_in_two_namespaces(cluster: Access, client: ApiClient, job: Job) -> None:
    with new_namespace(client, release.RESTRICTED) as namespace:
        other = Job(cluster, namespace)
        for each in (job, other):
            each.apply()
        for each in (job, other):
            status = each.succeeds()
            assert (status["progress"]["step"], status["restarts"]) == (22, 0)
