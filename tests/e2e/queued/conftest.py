"""Tests of this folder run on the control plane with Kueue; each has queues of its own."""

from collections.abc import Iterator

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.layout import Layout
from e2e.cluster.plane import Plane
from tests.e2e.queued.queues import Queues


@pytest.fixture(scope="session")
def cluster(queued: Plane) -> Access:
    return queued.access


@pytest.fixture(scope="session")
def layout(queued: Plane) -> Layout:
    return queued.layout


@pytest.fixture
def queues(client: ApiClient, namespace: str) -> Iterator[Queues]:
    queues = Queues(client, namespace)
    yield queues
    queues.delete()
