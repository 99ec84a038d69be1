"""What tests get: KubeRay on fake nodes, the RLJob API, and a namespace of their own."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException, CoreV1Api, CustomObjectsApi

from e2e.cluster.binaries import cache
from e2e.cluster.errors import ClusterError
from e2e.cluster.fixtures import CONTEXT, JOBS, new_namespace, wait_until_gone
from e2e.cluster.proxy import Proxy
from tests.charts.chart import CHART
from tests.charts.release import FORCED
from tests.e2e.waiting import eventually

REPOSITORY = Path(__file__).parents[2]

EXAMPLES = sorted(REPOSITORY.glob("examples/**/*.yaml"))

RLJOBS, RAYCLUSTERS = JOBS

USES_A_NAMESPACE = """
def test_it(cluster, client, namespace):
    cluster.kubectl("get", "rljobs", f"--namespace={namespace}")
    print("used", namespace)
"""


@pytest.fixture
def fake_nodes(cluster):
    if not cluster.kubectl("get", "nodes", "--selector=type=kwok", "--output=name"):
        pytest.skip("the cluster has no fake nodes")


@pytest.mark.usefixtures("layout")  # another's cluster is found as its user does, who has a cache already
def test_what_kubectl_and_helm_discover_is_kept_with_the_cluster(cluster, namespace, helm, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache().parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    with Proxy(cluster) as proxy:
        account = cluster.as_service_account(namespace, "default", tmp_path / "account")
        for access in (cluster, account, proxy.access(tmp_path / "proxy")):
            access.kubectl("api-resources")
    in_namespace = f"--namespace={namespace}"
    replace(helm, access=cluster)("install", "any", str(CHART), in_namespace, "--dry-run=server", *FORCED)
    assert {each.name for each in tmp_path.iterdir()} == {"account", "proxy"}


def pod(gpus=0):
    limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    return {"spec": {"containers": [{"name": "ray", "image": "ray", "resources": limits}]}}


def ray_cluster(workers, gpus):
    worker = {"groupName": "worker", "replicas": workers, "minReplicas": workers, "maxReplicas": workers}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray"},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": pod()},
            "workerGroupSpecs": [worker | {"rayStartParams": {}, "template": pod(gpus)}],
        },
    }


def create(client, kind, namespace, body):
    CustomObjectsApi(client).create_namespaced_custom_object(**kind, namespace=namespace, body=body)


def read(client, kind, namespace, name) -> Any:
    return CustomObjectsApi(client).get_namespaced_custom_object(**kind, namespace=namespace, name=name)


def names(client, kind, namespace):
    found: Any = CustomObjectsApi(client).list_namespaced_custom_object(**kind, namespace=namespace)
    return [item["metadata"]["name"] for item in found["items"]]


def test_a_ray_cluster_on_fake_nodes_gets_its_head_and_its_workers(fake_nodes, client, namespace):
    create(client, RAYCLUSTERS, namespace, ray_cluster(workers=2, gpus=8))

    def ready():
        status = read(client, RAYCLUSTERS, namespace, "ray").get("status", {})
        met = {each["type"] for each in status.get("conditions", ()) if each["status"] == "True"}
        return status.get("readyWorkerReplicas") == 2 and {"HeadPodReady", "RayClusterProvisioned"} <= met

    eventually(ready)
    pods: Any = CoreV1Api(client).list_namespaced_pod(namespace)
    workers = {pod.spec.node_name for pod in pods.items if pod.metadata.labels["ray.io/node-type"] == "worker"}
    assert len(workers) == 2, "eight GPUs fill a node"


def test_a_claim_gets_a_volume(fake_nodes, cluster, client, namespace):
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "500Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "checkpoints"}, "spec": spec}
    cluster.kubectl("create", "--filename=-", f"--namespace={namespace}", objects=yaml.safe_dump(claim))

    def phase():
        read: Any = CoreV1Api(client).read_namespaced_persistent_volume_claim("checkpoints", namespace)
        return read.status.phase

    eventually(lambda: phase() == "Bound")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_an_example_is_admitted(client, namespace, file):
    for job in yaml.safe_load_all(file.read_text()):
        create(client, RLJOBS, namespace, job)


def test_a_broken_job_is_refused_with_the_name_of_its_field(cluster, namespace):
    broken = yaml.safe_load(EXAMPLES[0].read_text())
    broken["spec"]["training"]["steps"] = 0
    with pytest.raises(ClusterError, match=r"spec\.training\.steps: Invalid value: 0"):
        cluster.kubectl("create", "--filename=-", f"--namespace={namespace}", objects=yaml.safe_dump(broken))


def test_a_namespace_goes_with_what_has_finalizers(client):
    job = yaml.safe_load(EXAMPLES[0].read_text())
    ray = ray_cluster(workers=1, gpus=1)
    for body in (job, ray):
        body["metadata"]["finalizers"] = ["rljob.dev/cleanup"]
    with new_namespace(client) as namespace:
        create(client, RLJOBS, namespace, job)
        create(client, RAYCLUSTERS, namespace, ray)
    assert names(client, RLJOBS, namespace) == names(client, RAYCLUSTERS, namespace) == []
    wait_until_gone(client, namespace)


def test_an_existing_cluster_is_used_by_its_context(cluster, client, tmp_path):
    (tmp_path / "test_it.py").write_text(USES_A_NAMESPACE)
    context = cluster.kubectl("config", "current-context").strip()
    environment = {
        **os.environ,
        CONTEXT: context,
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "KUBECACHEDIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.getcwd(),
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(cluster.settings()))
    command = [sys.executable, "-m", "pytest", "-p", "e2e.cluster.fixtures", "-s", "test_it.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    (namespace,) = (line.split()[-1] for line in run.stdout.splitlines() if "used " in line)
    with pytest.raises(ApiException, match="Not Found"):
        CoreV1Api(client).read_namespace(namespace)
