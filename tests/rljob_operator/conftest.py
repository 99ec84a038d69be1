"""Fixtures of several test files."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.cluster.access import Access

if TYPE_CHECKING:  # every test process loads this file, and few need a client
    from kubernetes.client import ApiClient

    from tests.rljob_operator.kubectl_support import Jobs, Shell


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kubectl and the plugin."""
    from tests.rljob_operator.kubectl_support import install

    return install(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def shell(programs: Path, cluster: Access, namespace: str) -> "Shell":
    from tests.rljob_operator.kubectl_support import Shell

    return Shell(programs, cluster, namespace)


@pytest.fixture
def jobs(client: "ApiClient", namespace: str) -> "Jobs":
    from tests.rljob_operator.kubectl_support import Jobs

    return Jobs(client, namespace)
