"""A cluster with real nodes for the whole run of tests, and the operator installed in it by Helm.

E2E_KUBECONTEXT names another cluster: one with KubeRay, the operator, its trainer image and a default StorageClass.
E2E_ACCESS_MODE=ReadWriteOnce is for one whose volumes are no others, such as kind's.
Scenarios that strike more than their own job, or need what is built here, are left out there.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from e2e.cluster.errors import NotHere
from e2e.cluster.fixtures import CONTEXT, client, helm, namespaces, new_namespace
from e2e.cluster.helm import Helm
from e2e.cluster.layout import Layout
from e2e.cluster.plane import Plane
from e2e.nodes import images, packages, release
from e2e.nodes.traces import files, kernel, traces
from e2e.scenarios.job import Job

__all__ = ["client", "helm", "namespaces"]

GONE_SECONDS = 180.0

SECONDS = "seconds to the next step"
MEASURED = "measured seconds"
"""Names of properties of a result."""

Report = Callable[[float], None]

Measured = Callable[[dict[str, float]], None]


def own_cluster_only(why: str) -> pytest.MarkDecorator:
    """For what must not be done to a cluster that others may use. why: how the reason of its absence begins."""
    return pytest.mark.skipif(bool(os.environ.get(CONTEXT)), reason=f"{why}, and {CONTEXT} names a cluster")


@pytest.fixture(scope="session")
def cluster(helm: Helm) -> Iterator[Access]:
    if context := os.environ.get(CONTEXT):
        yield Access(context=context)
        return
    if os.geteuid():
        pytest.skip(f"did NOT run: {packages.NEED_ROOT}")
    folder = Path(tempfile.gettempdir()) / f"rljob-{uuid.uuid4().hex[:8]}"
    try:
        release.prepare()
        images.ensure([images.NEWER_OPERATOR])  # before the nodes, which take their images from here as they start
        before, there = kernel(), files()
        with release.operated(folder, helm.home) as plane:
            yield plane.access
    except NotHere as error:
        pytest.skip(f"did NOT run: {error}")
    wait_until_gone(folder)
    assert kernel() == before, "what the cluster changed of the machine's kernel is as it was"
    assert files() - there == set(), "nothing is kept but in the cache"


def wait_until_gone(cluster: Path) -> None:
    """It is taken down after its last user. Raises AssertionError where it leaves something on this machine."""
    deadline = time.monotonic() + GONE_SECONDS
    while left := traces(cluster):
        if time.monotonic() > deadline:
            raise AssertionError(f"{GONE_SECONDS:.0f} s after the last user the cluster leaves {', '.join(left)}")
        time.sleep(0.5)


@pytest.fixture(scope="session")
def layout(cluster: Access) -> Layout:
    """Of the cluster's files and nodes."""
    if cluster.cache is None:
        pytest.skip(f"needs the cluster's machines, and {CONTEXT} names a cluster")
    return Plane(cluster.cache.parent).layout


@pytest.fixture
def namespace(client: ApiClient, namespaces: list[str]) -> Iterator[str]:
    with new_namespace(client, release.RESTRICTED) as name:
        namespaces.append(name)
        yield name


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Report:
    """Seconds from what was lost to the next optimizer step: they go with the scenario's result."""
    return lambda seconds: record_property(SECONDS, round(seconds, 1))


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measured:
    """Other seconds, by what they are: they go with the scenario's result."""
    return lambda seconds: record_property(MEASURED, {what: round(each, 1) for what, each in seconds.items()})


@pytest.fixture
def job(cluster: Access, namespace: str) -> Job:
    return Job(cluster, namespace)
