"""Containers that chaos in a cluster kills: which ones, and by their own nodes."""

import json
import time

import pytest

from e2e.cluster.access import Access
from e2e.cluster.errors import ClusterError
from e2e.cluster.plane import Plane
from e2e.cluster_chaos.faults import FAULTS, OPERATOR_CONTAINER
from e2e.nodes import release
from e2e.nodes.machine import Machine
from e2e.scenarios.job import Job


def pod_on(node, container, state="running"):
    """Also with an agent, which is not struck."""
    statuses = [
        {"name": name, "containerID": f"containerd://{name}-{node}", "state": {state: {}}}
        for name in (container, "agent")
    ]
    return {"spec": {"nodeName": node}, "status": {"containerStatuses": statuses}}


@pytest.fixture
def kills(monkeypatch):
    """Commands that were run on nodes; node-2's say that there is no such task."""
    run = []

    def on_node(machine, *command):
        if machine.number == 2:
            raise ClusterError("no such task")
        run.append((machine.name, " ".join(command)))

    monkeypatch.setattr(Machine, "run", on_node)
    return run


@pytest.mark.parametrize(
    ("fault", "pods", "killed"),
    [
        ("worker container killed", [pod_on("node-0", "ray-worker")], ["ray-worker-node-0"]),
        ("head container killed", [pod_on("node-1", "ray-head")], ["ray-head-node-1"]),
        (
            "operator container killed",
            [pod_on(f"node-{number}", "operator") for number in range(3)],
            ["operator-node-0", "operator-node-1"],
        ),
        ("head container killed", [pod_on("node-1", "ray-head", "waiting")], []),
        ("head container killed", [pod_on("node-2", "ray-head")], []),
        ("head container killed", [{"spec": {}}], []),  # it waits for a node
    ],
)
def test_a_killed_container_gets_sigkill_from_its_node(fault, pods, killed, kills, monkeypatch, tmp_path):
    monkeypatch.setattr(Access, "kubectl", lambda *_: json.dumps({"items": pods}))
    monkeypatch.setattr(Plane, "access", Access())
    strike = next(each.strike for each in FAULTS if each.name == fault)
    before = time.time()
    at = strike(Job(Access(), "mine"), Plane(tmp_path))
    ctr = "ctr --address=/run/containerd/containerd.sock --namespace=k8s.io tasks kill --all --signal=SIGKILL"
    assert kills == [(each[-6:], f"{ctr} {each}") for each in killed]
    assert (at is not None and before <= at <= time.time()) if killed else at is None


def test_the_operators_container_has_the_charts_name():
    deployment = (release.CHART / "templates/deployment.yaml").read_text()
    assert f"- name: {OPERATOR_CONTAINER}\n" in deployment
