"""A node whose pods get too little of a CPU: the fabric preflight names it, and the job trains on the others."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.access import Access
from e2e.cluster.layout import Layout
from e2e.nodes import agents, cgroups, release, up
from e2e.nodes.machine import Machine
from e2e.scenarios.conftest import own_cluster_only
from e2e.scenarios.job import Job
from e2e.scenarios.test_losses import TWO_WORKERS, nodes_of_workers
from rljob_api.conditions import Aspect, Note, Reason
from rljob_operator.names import JOB_LABEL, ROLE_LABEL, WORKER

pytestmark = [pytest.mark.timeout(2400), own_cluster_only("adds a node and slows it")]

CPUS = 0.05
"""Of the bad node's pods."""

FABRIC = {"minBusBandwidthGBps": 0.08, "timeLimit": "120s"}
"""gloo takes the place of NCCL, so two nodes are as fast as their CPUs: more than twice the minimum if neither is bad,
also on a busy machine, and less than half of it with a bad one.
"""

HEAD = {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-0"}}}}
"""On a node that is well: the driver runs there."""


@contextmanager
def another_node(cluster: Access, layout: Layout) -> Iterator[Machine]:
    node = Machine(layout.folder, release.NODES)
    up.start(layout, node)
    try:
        up.wait_until_ready(layout, cluster, [node])
        yield node
    finally:
        node.power_off()
        cluster.kubectl("delete", "node", node.name, "--ignore-not-found")


def test_a_slow_node_is_named_and_the_job_trains_on_the_others(cluster: Access, layout: Layout, job: Job) -> None:
    spec: dict[str, Any] = {**TWO_WORKERS, "preflight": {"fabric": FABRIC}}
    spec["cluster"] = {**spec["cluster"], "nodes": 3, "head": HEAD}
    with another_node(cluster, layout) as bad:
        job.apply(**spec)
        job.eventually(lambda: len(nodes_of_workers(job)) == 3 and job.holds("ClusterReady"), "worker on each node")
        pods = f"{agents.cgroup(bad)}/kubepods"
        job.eventually(lambda: has_torch(pods), "process that is about to measure")
        with cgroups.limited(pods, CPUS):
            job.eventually(lambda: preflight(job)["status"] == "False", "failed preflight")
            failed = preflight(job)
            assert failed["reason"] == Reason.FABRIC_SLOW
            for other in ("node-0", "node-1"):
                assert named(failed["message"], bad.name, other)
            assert failed["message"].endswith(f"; blamed: {bad.name}")
            (excluded,) = job.eventually(lambda: job.status.get("excludedNodes"), "excluded node")
            assert (excluded["name"], excluded["reason"]) == (bad.name, Reason.FABRIC_SLOW)
            job.trains()
            assert nodes_of_workers(job) == {"node-0", "node-1"}
            assert avoided(job) == [[bad.name]] * 3
            assert (preflight(job)["status"], preflight(job)["reason"]) == ("True", Aspect.ALL_PAIRS_PASSED)
            status = job.succeeds_after(Note.NODE_EXCLUDED)
    assert (status["restarts"], status["attempt"]) == (1, 2)


def has_torch(pods: str) -> bool:
    """Whether one of the processes has loaded torch, which takes minutes with so little of a CPU."""
    return any("libtorch_cpu" in maps(each) for each in cgroups.processes(pods))


def maps(process: int) -> str:
    """Its mapped files; none if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/maps").read_text()
    return ""


def preflight(job: Job) -> dict[str, str]:
    return job.conditions.get("PreflightPassed", {"status": "", "reason": "", "message": ""})


def named(message: str, *pair: str) -> bool:
    return any(f"{one} and {other} (" in message for one, other in (pair, pair[::-1]))


def avoided(job: Job) -> list[list[str]]:
    """By each worker pod: names of nodes."""
    selector = f"--selector={JOB_LABEL}={job.name},{ROLE_LABEL}={WORKER}"
    pods = json.loads(job.kubectl("get", "pods", selector, "--output=json"))["items"]
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = [pod["spec"]["affinity"]["nodeAffinity"][key]["nodeSelectorTerms"] for pod in pods]
    return [each["values"] for (term,) in terms for each in term["matchExpressions"] if each["operator"] == "NotIn"]
