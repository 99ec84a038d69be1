"""A test may stop, start and freeze the components of a control plane of its own."""

import json
import socket
from contextlib import closing

import pytest

from e2e.cluster import processes
from e2e.cluster.components import COMPONENTS, KUEUE
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import HOST
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.slow


def requests_of(plane, user):
    events = (json.loads(line) for line in plane.layout.audit_log.read_text().splitlines())
    return [(event["verb"], event["requestURI"]) for event in events if event["user"]["username"] == user]


@pytest.mark.parametrize("grace", [0, 10], ids=["killed", "asked"])
def test_a_component_is_stopped_and_started_alone(plane, grace):
    before = processes.find(plane.folder)
    plane.stop("kuberay-operator", grace)
    assert plane.running == [name for name in COMPONENTS if name != "kuberay-operator"]
    plane.start("kuberay-operator")
    after = processes.find(plane.folder)
    assert before.pop("kuberay-operator") != after.pop("kuberay-operator")
    assert before == after


def test_a_frozen_api_server_takes_connections_and_answers_later(plane):
    port = plane.layout.ports["kube-apiserver"]
    with plane.frozen("kube-apiserver"):
        with closing(socket.create_connection((HOST, port))):
            pass
        with pytest.raises(ClusterError, match="imeout"):
            plane.access.kubectl("get", "nodes", "--request-timeout=1s")
    assert plane.access.kubectl("get", "nodes", "--output=name")


def test_the_audit_log_says_who_asked_what(plane, tmp_path):
    plane.access.kubectl("create", "serviceaccount", "somebody")
    somebody = plane.access.as_service_account("default", "somebody", tmp_path / "kubeconfig")
    with pytest.raises(
        ClusterError, match='User "system:serviceaccount:default:somebody" cannot list resource "rljobs"'
    ):
        somebody.kubectl("get", "rljobs")
    asked = eventually(lambda: requests_of(plane, "system:serviceaccount:default:somebody"))
    assert ("list", "/apis/rljob.dev/v1alpha1/namespaces/default/rljobs?limit=500") in asked


def test_kueue_is_added_to_a_control_plane_that_runs_and_removed_without_a_trace(plane):
    before = everywhere(plane)
    plane.add_kueue()
    assert {*plane.running} == {*COMPONENTS, KUEUE.name}
    assert any(each.endswith("/workloads.kueue.x-k8s.io") for each in everywhere(plane) - before)
    plane.remove_kueue()
    assert {*plane.running} == {*COMPONENTS}
    eventually(lambda: everywhere(plane) == before)


def everywhere(plane):
    """Objects without a namespace that have the API server call another program, or allow it something."""
    kinds = (
        "customresourcedefinitions,apiservices,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
        "namespaces,clusterroles,clusterrolebindings"
    )
    return {*plane.access.kubectl("get", kinds, "--output=name").split()}
