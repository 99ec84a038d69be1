"""Kueue evicts a job whose pods do not become ready in time: its configuration here sets waitForPodsReady."""

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.fixtures import new_namespace
from e2e.cluster.kueue import configure
from e2e.cluster.sharing import shared
from tests.e2e.queued.queued_jobs import QUOTA, QueuedJobs
from tests.e2e.queued.queues import Queues
from tests.e2e.waiting import eventually

WAIT = {
    "timeout": "3s", "blockAdmission": False,
    "requeuingStrategy": {"timestamp": "Eviction", "backoffLimitCount": 1, "backoffBaseSeconds": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Access]:
    with shared(Path(tempfile.gettempdir()) / f"rljob-{uuid.uuid4().hex}", kueue=True) as plane:
        plane.stop("kueue")
        configure(plane.layout, waitForPodsReady=WAIT)
        plane.start("kueue")
        yield plane.access


@pytest.fixture
def namespace(client: ApiClient) -> Iterator[str]:
    with new_namespace(client) as name:
        yield name


def test_a_job_whose_pods_find_no_node_is_evicted_requeued_and_at_last_deactivated(
    operator: object, heads: object, client: ApiClient, namespace: str, queues: Queues
) -> None:
    jobs = QueuedJobs(client, namespace, queues)
    queues.create(QUOTA, flavor=queues.create_flavor("nowhere", nodeLabels={"there": "is-none"}))
    jobs.queue()
    eventually(lambda: jobs.conditions().get("Evicted", ("", ""))[:2] == ("True", "PodsReadyTimeout"))
    eventually(lambda: jobs.conditions()["Ready"][1] == "WorkloadDeactivated")
    assert jobs.status()["workload"]["evictions"] >= 2, "it was requeued in between"
    assert jobs.is_queued()
    assert jobs.status().get("attempt", 0) == 0

    evictions = jobs.status()["workload"]["evictions"]
    jobs.activate(active=True)
    eventually(lambda: jobs.status()["workload"]["evictions"] > evictions)  # so it was admitted again
