"""An operator that looks after the test's namespace, its jobs there, and the heads that are played for them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import OperatorProcess, running_operator
from tests.rljob_operator.played_head import PlayedHeads


@pytest.fixture
def heads() -> Iterator[PlayedHeads]:
    with PlayedHeads() as heads:
        yield heads


@pytest.fixture
def jobs(client: ApiClient, namespace: str) -> Jobs:
    return Jobs(client, namespace)


@pytest.fixture
def operator(cluster: Access, namespace: str, heads: PlayedHeads, tmp_path: Path) -> Iterator[OperatorProcess]:
    with running_operator(cluster, namespace, heads.template, tmp_path) as operator:
        yield operator
