"""kstatus over statuses of the operator. Helm waits by it (as Flux and kpt do), so Helm is asked what it waits for."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.helm import Helm
from tests.charts.test_argocd_health import CASES

EXPECTED = {
    "new": "InProgress",
    "pods on the way": "InProgress",
    "no image is named": "Failed",
    "no such image": "Failed",
    "running": "Current",
    "running, the head is silent": "Current",
    "recovering": "InProgress",
    "failed": "Failed",
    "succeeded": "Current",
    "being suspended": "InProgress",
    "suspended": "InProgress",  # as a suspended Job of Kubernetes: it is not Ready
    "nobody has seen it": "Current",  # kstatus' own rule: without a status there is nothing to wait for
    "another controller's": "Current",
}
NAMES = {case: re.sub(r"\W+", "-", case) for case in EXPECTED}

WAITED = re.compile(r"resource RLJob/[^/]+/(\S+) not ready\. status: (\w+)")


def test_helm_waits_for_a_job_that_progresses_and_fails_with_one_that_has_failed(
    helm: Helm, cluster: Access, namespace: str, tmp_path: Path
):
    assert set(CASES) - set(EXPECTED) == {"being deleted"}, "which nobody installs"
    chart = tmp_path / "jobs"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("{apiVersion: v2, name: jobs, version: 1.0.0}")
    jobs = [{**CASES[case][0], "metadata": {"name": name}} for case, name in NAMES.items()]
    for each in jobs:
        text = yaml.safe_dump({key: value for key, value in each.items() if key != "status"})
        (chart / "templates" / f"{each['metadata']['name']}.yaml").write_text(text)
    here = replace(helm, access=cluster)

    def upgrade(*options: str) -> None:
        here("upgrade", "jobs", str(chart), "--install", f"--namespace={namespace}", *options)

    upgrade()
    for each in jobs:
        if each["status"]:
            status = json.dumps({"status": {**each["status"], "observedGeneration": 1}})
            options = ("--subresource=status", "--type=merge", f"--patch={status}", f"--namespace={namespace}")
            cluster.kubectl("patch", "rljob", each["metadata"]["name"], *options)

    with pytest.raises(ClusterError) as raised:
        upgrade("--wait", "--timeout=10s")

    found = dict(WAITED.findall(str(raised.value)))
    assert {case: found.get(name, "Current") for case, name in NAMES.items()} == EXPECTED
