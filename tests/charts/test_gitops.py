"""A manifest that somebody applied stays as it is: nothing for Argo CD to see, whatever the operator does meanwhile."""

import json
from typing import Any

import pytest
import yaml

from e2e.cluster.access import Access
from rljob_operator.kube.client import FIELD_MANAGER
from tests.charts.chart import CHART, ROOT, render
from tests.e2e.jobs import Jobs
from tests.e2e.operator_process import running_operator
from tests.rljob_api.example_files import FILES, example_name
from tests.rljob_operator.played_driver import train
from tests.rljob_operator.played_head import PlayedHeads

BOOKKEEPING = ("managedFields", "resourceVersion")
"""What the API server changes in metadata at any write."""


@pytest.fixture(params=FILES, ids=example_name)
def manifest(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return found


def test_what_is_applied_again_changes_nothing(cluster, namespace, manifest):
    live = apply(cluster, namespace, manifest)

    assert content(apply(cluster, namespace, manifest, "--dry-run=server")) == content(live)


def test_the_operator_leaves_the_manifest_alone(cluster, client, namespace, tmp_path):
    manifest = yaml.safe_load(FILES[0].read_text())
    name = manifest["metadata"]["name"]
    with PlayedHeads() as heads, running_operator(cluster, namespace, heads.template, tmp_path):
        heads.add(namespace, name, script=train(6, seconds=0.2, every=2))
        before = apply(cluster, namespace, manifest)
        Jobs(client, namespace).reaches("Succeeded", name)
        after = apply(cluster, namespace, manifest, "--dry-run=server")

    assert after["status"]["progress"]["step"] == 6
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert owned(after, FIELD_MANAGER) == {"f:metadata/f:finalizers", "f:status"}


def test_the_example_applications_compare_as_the_api_server_does_and_give_the_chart_values_that_it_takes(helm):
    operator, jobs = yaml.safe_load_all((ROOT / "charts/argocd/applications.yaml").read_text())

    assert ROOT / operator["spec"]["source"]["path"] == CHART
    assert render(helm, operator["spec"]["source"]["helm"]["valuesObject"])
    assert jobs["metadata"]["annotations"] == {"argocd.argoproj.io/compare-options": "ServerSideDiff=true"}
    assert all("ServerSideApply=true" in each["spec"]["syncPolicy"]["syncOptions"] for each in (operator, jobs))


def apply(cluster: Access, namespace: str, job: dict[str, Any], *options: str) -> dict[str, Any]:
    """As Argo CD does it. Returns the object as it is, or would be, then."""
    answer = cluster.kubectl(
        "apply", "--server-side", "--field-manager=argocd-controller", f"--namespace={namespace}", "--filename=-",
        "--output=json", "--show-managed-fields", *options, objects=yaml.safe_dump(job),
    )  # fmt: skip
    live: dict[str, Any] = json.loads(answer)
    return live


def content(live: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in live["metadata"].items() if key not in BOOKKEEPING}
    return live | {"metadata": metadata}


def owned(live: dict[str, Any], manager: str) -> set[str]:
    """The fields of a manager: those of metadata one by one, else the first level."""
    entries = [each["fieldsV1"] for each in live["metadata"]["managedFields"] if each["manager"] == manager]
    first = {field for entry in entries for field in entry}
    metadata = {f"f:metadata/{field}" for entry in entries for field in entry.get("f:metadata", {})}
    return (first - {"f:metadata"}) | metadata
