"""MultiKueue: a job of one control plane runs in another. Each has Kueue and an operator."""

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient, CoreV1Api, V1Namespace, V1ObjectMeta, V1Secret

from e2e.cluster.access import Access
from e2e.cluster.fixtures import new_namespace
from e2e.cluster.kueue import NAMESPACE, RLJOBS, configure
from e2e.cluster.sharing import shared
from rljob_operator.names import MULTIKUEUE
from tests.e2e.jobs import runs
from tests.e2e.operator_process import running_operator
from tests.e2e.queued.queued_jobs import QUOTA, QueuedJobs
from tests.e2e.queued.queues import KUEUE, Queues
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_head import PlayedHeads

pytestmark = pytest.mark.slow

CHECK = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "others"}

FRAMEWORKS = ["batch/job", "ray.io/raycluster"]
"""Of the chart's default, those whose kinds the receiver has: Kueue connects to no cluster that lacks one."""


@pytest.fixture(scope="module")
def planes() -> Iterator[tuple[Access, Access]]:
    """The cluster that sends jobs away, and the one that gets them."""
    folders = [Path(tempfile.gettempdir()) / f"rljob-{uuid.uuid4().hex}" for _ in range(2)]
    with shared(folders[0], kueue=True) as sender, shared(folders[1], kueue=True) as receiver:
        sender.stop("kueue")
        integrations = {"frameworks": FRAMEWORKS, "externalFrameworks": [RLJOBS]}
        configure(sender.layout, integrations=integrations, multiKueue={"externalFrameworks": [{"name": RLJOBS}]})
        sender.start("kueue")
        yield sender.access, receiver.access


@pytest.fixture
def clients(planes: tuple[Access, Access]) -> Iterator[list[ApiClient]]:
    with ExitStack() as stack:
        yield [stack.enter_context(each.client()) for each in planes]


@pytest.fixture
def both(
    planes: tuple[Access, Access], clients: list[ApiClient], heads: PlayedHeads, tmp_path: Path
) -> Iterator[tuple[QueuedJobs, QueuedJobs]]:
    """Of a namespace that both clusters have, with a queue and an operator in each."""
    with new_namespace(clients[0]) as name, ExitStack() as stack:
        CoreV1Api(clients[1]).create_namespace(V1Namespace(metadata=V1ObjectMeta(name=name)))
        sender, receiver = (QueuedJobs(each, name, Queues(each, name)) for each in clients)
        connect(clients[0], planes[1])
        sender.queues.create(QUOTA, admissionChecksStrategy={"admissionChecks": [{"name": "others"}]})
        receiver.queues.create(QUOTA)
        for jobs in (sender, receiver):
            stack.callback(jobs.queues.delete)
        for number, access in enumerate(planes):
            (folder := tmp_path / f"{number}").mkdir()
            stack.enter_context(running_operator(access, name, heads.template, folder))
        yield sender, receiver


def connect(client: ApiClient, receiver: Access) -> None:
    """As an administrator of MultiKueue does, once."""
    secret = V1Secret(
        metadata=V1ObjectMeta(name="receiver"), string_data={"kubeconfig": yaml.safe_dump(receiver.settings())}
    )
    CoreV1Api(client).create_namespaced_secret(NAMESPACE, secret)
    queues = Queues(client, "")
    create(queues, "MultiKueueCluster", "receiver", clusterSource={"kubeConfig": {"location": "receiver"}})
    create(queues, "MultiKueueConfig", "others", clusters=["receiver"])
    create(queues, "AdmissionCheck", "others", controllerName=MULTIKUEUE, parameters=CHECK)


def create(queues: Queues, kind: str, name: str, **spec: Any) -> None:
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
    queues.api.create_cluster_custom_object(**KUEUE, plural=f"{kind.lower()}s", body=body)


def test_a_job_runs_in_the_other_cluster_and_its_status_comes_back(both, heads):
    sender, receiver = both
    heads.add(sender.namespace, "job")
    sender.queue(managedBy=MULTIKUEUE)
    driver = runs(heads, receiver)
    eventually(lambda: sender.status().get("phase") == "Running")
    assert sender.status()["attempt"] == 1
    assert (sender.clusters(), sender.pods()) == ([], [])
    names = {each["metadata"]["name"] for each in (sender.workload(), receiver.workload())}
    assert len(names) == 1, "the copy has taken the Workload that Kueue created"
    driver.end(0)
    sender.reaches("Succeeded")
    eventually(lambda: sender.workload_is("Finished") and not sender.workload()["metadata"].get("finalizers"))
    eventually(lambda: not receiver.exists())
    sender.delete()

    sender.queue("second", managedBy=MULTIKUEUE)
    eventually(lambda: sender.status("second").get("phase") == "Starting")
    sender.patch("second", suspend=True)
    eventually(lambda: sender.status("second").get("phase") == "Suspended")
    eventually(lambda: not receiver.exists("second") and not receiver.clusters())
