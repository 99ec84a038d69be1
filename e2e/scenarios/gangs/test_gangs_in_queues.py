"""Kueue decides when a job's gang may start; then its scheduler places all pods or none."""

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.fixtures import new_namespace
from e2e.scenarios.gangs.conftest import Site, on
from e2e.scenarios.gangs.team import pod_groups
from tests.e2e.queued.queued_jobs import QueuedJobs
from tests.e2e.queued.queues import Queues
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.timeout(1800)

GANG: Any = {"gang": {"scheduler": "volcano"}}


@pytest.fixture
def jobs(client: ApiClient) -> Iterator[QueuedJobs]:
    """A queue with quota for one of them."""
    with new_namespace(client) as namespace:
        jobs = QueuedJobs(client, namespace, Queues(client, namespace))
        jobs.begin()
        yield jobs
        jobs.queues.delete()


@on("volcano", kueue=True)
def test_a_pod_group_exists_only_while_its_job_is_admitted(site: Site, jobs: QueuedJobs) -> None:
    def groups() -> list[str]:
        return [each["metadata"]["name"] for each in pod_groups(jobs, "volcano")]

    head, _ = (site.heads.add(jobs.namespace, name) for name in ("first", "second"))
    jobs.queue("first", **GANG)
    (driver,) = eventually(lambda: head.drivers)
    driver.start()
    jobs.reaches("Running", "first")
    jobs.queue("second", **GANG)
    eventually(lambda: jobs.is_queued("second"))
    assert groups() == ["first"]
    assert all(pod.spec.node_name and pod.spec.scheduler_name == "volcano" for pod in jobs.pods_of("first"))

    jobs.queues.patch(stopPolicy="HoldAndDrain")
    eventually(lambda: head.volume.request)
    assert groups() == ["first"], "until its last pod has ended"
    driver.end(76, "StoppedOnRequest", "saved")
    eventually(lambda: jobs.is_queued("first") and not groups())
    jobs.queues.patch(stopPolicy="None")
    eventually(groups)
    (admitted,) = groups()
    assert jobs.workload_is("Admitted", admitted)
