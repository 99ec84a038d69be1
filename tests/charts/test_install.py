"""The chart on a real API server: accepted, installed, upgraded, uninstalled. Fake nodes run the operator's pods."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from e2e.cluster.access import Access
from e2e.cluster.binaries import BINARIES
from e2e.cluster.errors import ClusterError
from e2e.cluster.helm import Helm
from rljob_operator.kube.client import Kube
from rljob_operator.kube.connection import Connection
from rljob_operator.runtime import key
from tests.charts.chart import CHART, VALUES, render
from tests.charts.release import Release, installed
from tests.e2e.waiting import eventually
from tests.rljob_operator.snapshots import manifest

pytestmark = pytest.mark.usefixtures("layout")  # only fake nodes run an image that nobody has built

PEOPLE = {
    "view": {"get": True, "list": True, "watch": True, "create": False, "delete": False},
    "edit": {"get": True, "list": True, "create": True, "patch": True, "delete": True},
}


@pytest.fixture(scope="module")
def release(helm: Helm, cluster: Access, layout) -> Iterator[Release]:
    with installed(helm, cluster) as release:
        yield release


@pytest.fixture(scope="module")
def monitors(helm: Helm, cluster: Access) -> None:
    """The Prometheus operator's kinds."""
    folder = BINARIES["prometheus-operator"].share("example/prometheus-operator-crd")
    files = [f"--filename={folder}/monitoring.coreos.com_{kind}.yaml" for kind in ("servicemonitors", "podmonitors")]
    cluster.kubectl("apply", "--server-side", *files)
    cluster.kubectl("wait", "--for=condition=Established", *files)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_accepts_every_object(helm, cluster, release, monitors, values):
    here = values | {"namespaces": [release.jobs]} if "namespaces" in values else values
    objects = render(helm, here, release.name)

    accepted = cluster.kubectl(
        "apply", "--server-side", "--dry-run=server", "--force-conflicts", "--filename=-", "--output=name",
        objects=yaml.safe_dump_all(objects),
    )  # fmt: skip
    assert len(accepted.splitlines()) == len(objects)


def test_two_restricted_pods_run_on_two_nodes(release):
    pods = json.loads(release.kubectl("get", "pods", "--output=json"))["items"]

    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2


@pytest.mark.parametrize("role", PEOPLE)
def test_people_with_kubernetes_own_roles_have_their_part_of_rljobs(cluster, release, role):
    user = f"--user={role}-er"
    cluster.kubectl("create", "rolebinding", f"{role}-er", f"--clusterrole={role}", user, f"--namespace={release.jobs}")

    def allowed() -> dict[str, bool]:
        return {verb: may(cluster, release.jobs, f"{role}-er", verb) for verb in PEOPLE[role]}

    eventually(lambda: allowed() == PEOPLE[role])  # Kubernetes adds a role's parts to it a little later


def may(cluster: Access, namespace: str, user: str, verb: str) -> bool:
    """Whether the user may do that to RLJobs."""
    with suppress(ClusterError):  # kubectl fails where the answer is no
        return "yes" in cluster.kubectl(
            "auth", "can-i", verb, "rljobs.rljob.dev", f"--as={user}", f"--namespace={namespace}"
        )
    return False


def test_an_upgrade_brings_the_charts_crd(release, tmp_path):
    newer = shutil.copytree(CHART, tmp_path / "chart")
    crd = newer / "files/rljobs.rljob.dev.yaml"
    crd.write_text(crd.read_text().replace("metadata:\n", "metadata:\n  labels: {newer: 'yes'}\n", 1))
    newest = ("get", "crd", "--selector=newer=yes", "--output=name")

    release.install(str(newer))
    assert "rljobs.rljob.dev" in release.kubectl(*newest)
    release.install()
    assert release.kubectl(*newest) == ""


def test_the_crd_the_jobs_and_the_key_outlive_the_release(helm, cluster, layout, tmp_path):
    with installed(helm, cluster) as release:
        made = asyncio.run(key_of(release, tmp_path))
        job = manifest() | {"metadata": {"name": "job", "namespace": release.jobs}}
        cluster.kubectl("create", "--filename=-", objects=yaml.safe_dump(job))
        assert f"deployment.apps/{release.full_name}" in release.objects()

        release.uninstall()
        eventually(lambda: not release.objects())  # its pods end a little later
        assert cluster.kubectl("get", "rljobs", f"--namespace={release.jobs}", "--output=name").split() == [
            "rljob.rljob.dev/job"
        ]

        release.install()
        assert asyncio.run(key_of(release, tmp_path)) == made


async def key_of(release: Release, folder: Path) -> bytes:
    """What the operator's start reads, or makes the first time, with the operator's own rights."""
    account = release.as_operator(folder / "kubeconfig")
    async with await Connection.open(str(account.kubeconfig)) as connection:
        return await key.operator_key(Kube(connection), release.name)
