"""pytest fixtures for tests against a real Kubernetes API.

cluster    the way into it: one control plane for the whole test run, or the context that E2E_KUBECONTEXT names
client     its administrator's client
namespace  a new namespace in it
plane      a control plane of this test file's own, whose components it may stop, start and freeze
queued     the same for the whole test run, with Kueue: no test may stop what others use there
layout     where that control plane keeps its files, logs among them; skips where the cluster is another's
helm       Helm, with no cluster

`python -m e2e.cluster build` builds all that these start, or need for the context; `make test` begins with it.
Tests must not stop what others use at the same time: `cluster` is shared by all processes of pytest-xdist.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.helm import Helm
from e2e.cluster.layout import Layout
from e2e.cluster.objects import install_rljob
from e2e.cluster.plane import Plane
from e2e.cluster.sharing import shared

if TYPE_CHECKING:  # every test process loads this file, and few need a client
    from kubernetes.client import ApiClient, CoreV1Api

CONTEXT = "E2E_KUBECONTEXT"

GONE_SECONDS = 120.0
"""Deadline for the end of a namespace, and for its beginning."""

JOBS: tuple[dict[str, Any], ...] = (
    {"group": "rljob.dev", "version": "v1alpha1", "plural": "rljobs"},
    {"group": "ray.io", "version": "v1", "plural": "rayclusters"},
    {"group": "kueue.x-k8s.io", "version": "v1beta2", "plural": "workloads"},
)

NO_LABELS: Mapping[str, str] = MappingProxyType({})

NO_FINALIZERS = {"metadata": {"finalizers": None}}


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Access]:
    if context := os.environ.get(CONTEXT):
        access = Access(context=context)
        install_rljob(access)
        yield access
        return
    with shared(_folder_of_run()) as plane:
        yield plane.access


@pytest.fixture(scope="session")
def layout(cluster: Access) -> Layout:
    if cluster.cache is None:
        pytest.skip(f"needs the control plane's own files, and {CONTEXT} names a cluster")
    return Plane(cluster.cache.parent).layout


@pytest.fixture(scope="session")
def queued() -> Iterator[Plane]:
    if os.environ.get(CONTEXT):
        pytest.skip(f"needs a control plane with Kueue, and {CONTEXT} names a cluster")
    with shared(_folder_of_run("-queued"), kueue=True) as plane:
        yield plane


def _folder_of_run(end: str = "") -> Path:
    """Of a cluster that all processes of pytest-xdist share."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)
    return Path(tempfile.gettempdir()) / f"rljob-{run}{end}"


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    if os.environ.get(CONTEXT):
        pytest.skip(f"needs a control plane of its own, and {CONTEXT} names a cluster")
    with shared(Path(tempfile.gettempdir()) / f"rljob-{uuid.uuid4().hex}") as plane:
        yield plane


@pytest.fixture
def client(cluster: Access) -> Iterator["ApiClient"]:
    with cluster.client() as client:
        yield client


@pytest.fixture(scope="session")
def namespaces(cluster: Access) -> Iterator[list[str]]:
    """Those that this process made. A namespace is deleted after its test, but Kubernetes waits five seconds for it."""
    names: list[str] = []
    yield names
    with cluster.client() as client:
        for name in names:
            wait_until_gone(client, name)


@pytest.fixture
def namespace(client: "ApiClient", namespaces: list[str]) -> Iterator[str]:
    with new_namespace(client) as name:
        namespaces.append(name)
        yield name


@contextmanager
def new_namespace(client: "ApiClient", labels: Mapping[str, str] = NO_LABELS) -> Iterator[str]:
    """Deleted afterwards, and its jobs are gone."""
    from kubernetes.client import CoreV1Api, V1Namespace, V1ObjectMeta

    name = f"rljob-test-{uuid.uuid4().hex[:8]}"
    core = CoreV1Api(client)
    core.create_namespace(V1Namespace(metadata=V1ObjectMeta(name=name, labels=dict(labels))))
    try:
        _wait_for_service_account(core, name)
        yield name
    finally:
        core.delete_namespace(name)
        _remove_jobs(client, name)


def _wait_for_service_account(core: "CoreV1Api", namespace: str) -> None:
    """Its controller makes it a moment later, and no pod is admitted without."""
    deadline = time.monotonic() + GONE_SECONDS
    while not core.list_namespaced_service_account(namespace, field_selector="metadata.name=default").items:
        if time.monotonic() > deadline:
            raise ClusterError(f"namespace {namespace} has no ServiceAccount: does its controller run?")
        time.sleep(0.05)


def wait_until_gone(client: "ApiClient", namespace: str) -> None:
    from kubernetes.client import ApiException, CoreV1Api

    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        try:
            CoreV1Api(client).read_namespace(namespace)
        except ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return
            raise
        time.sleep(0.2)
    raise ClusterError(f"namespace {namespace} is not gone after {GONE_SECONDS:.0f} s: do its controllers run?")


def _remove_jobs(client: "ApiClient", namespace: str) -> None:
    """With their finalizers, which only a controller removes, and the test's may not run any more."""
    from kubernetes.client import ApiException, CustomObjectsApi

    api = CustomObjectsApi(client)
    for kind in JOBS:
        with suppress(ApiException):  # an existing cluster may lack the kind
            api.delete_collection_namespaced_custom_object(**kind, namespace=namespace)
            left: Any = api.list_namespaced_custom_object(**kind, namespace=namespace)
            for item in left["items"]:
                with suppress(ApiException):  # gone meanwhile
                    name = item["metadata"]["name"]
                    api.patch_namespaced_custom_object(**kind, namespace=namespace, name=name, body=NO_FINALIZERS)
