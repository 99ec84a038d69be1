"""What a job may lose while it trains: its head, a node that is emptied, one that is gone without a word, a kubelet."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.chaos.base import SHAPE, write_base
from e2e.cluster import processes
from e2e.cluster.access import Access
from e2e.cluster.layout import Layout
from e2e.nodes import up
from e2e.nodes.machine import Machine
from e2e.scenarios.conftest import Report, own_cluster_only
from e2e.scenarios.job import EXAMPLE, LONG, LONGER, LOST_WORKER, Job
from rljob_operator.names import JOB_LABEL, ROLE_LABEL, WORKER
from rljob_operator.render.merge import merged

pytestmark = pytest.mark.timeout(1800)


def test_a_lost_head_pod_costs_a_new_cluster(job: Job, report: Report) -> None:
    job.apply(**LONG)
    job.trains()
    before, saved = set(job.pods()), job.saved
    (head,) = job.pods("head")
    lost = time.time()
    job.kubectl("delete", head, "--force", "--grace-period=0")
    job.recovers()
    report(job.seconds_to_next_update(lost, attempt=2))
    assert before.isdisjoint(job.pods()), "another head knows nothing of the job"
    job.resumes(attempt=2, after=saved)

    status = job.succeeds_after("RayLost")
    assert (status["restarts"], status["attempt"]) == (1, 2)


SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "nodeTaintsPolicy": "Honor",
    "labelSelector": {"matchLabels": {ROLE_LABEL: WORKER}},
}
"""Of the job's pods in its own namespace; a single node takes all of them, also beside one that takes none."""

TWO_WORKERS: dict[str, Any] = {
    "model": {"fromScratch": {"layers": 2, "hiddenSize": 64, "heads": 2}},
    "data": {"promptsPerStep": 8},
    "rollout": {"samplesPerPrompt": 8},
    "actor": {"miniBatchSize": 4},
    "cluster": {"nodes": 2, "worker": {"template": {"spec": {"topologySpreadConstraints": [SPREAD]}}}},
}
"""A rank and an engine in each, with little to do: all of it shares two cores."""

ADAPTER: dict[str, Any] = {"fromScratch": None, "path": "/models/base", "lora": {"rank": 8}}
"""`spec.model` of a job that adapts a model of its pods' volume."""


def test_one_of_two_worker_pods_is_lost(cluster: Access, job: Job, report: Report) -> None:
    """They train as one; where there are two nodes, each is on one of its own."""
    job.apply(**LONG, **TWO_WORKERS)
    loses_a_worker(cluster, job, report)


def test_one_of_two_worker_pods_of_an_adapter_is_lost(
    cluster: Access, job: Job, report: Report, tmp_path: Path
) -> None:
    """Two ranks in each, and an engine each that gets the adapter alone from then on."""
    base = write_base(tmp_path / "base", yaml.safe_load(EXAMPLE.read_text())["spec"], SHAPE)
    job.kubectl("create", "configmap", "base", f"--from-file={base}")
    job.apply(
        **LONG,
        **merged(TWO_WORKERS, {"cluster": {"ranksPerNode": 2}}) | {"model": ADAPTER},
        volumes=[{"name": "base", "configMap": {"name": "base"}}],
        volumeMounts=[{"name": "base", "mountPath": "/models/base"}],
    )
    loses_a_worker(cluster, job, report)


def loses_a_worker(cluster: Access, job: Job, report: Report) -> None:
    """The job, which has two, loses one by force, gets another and resumes."""
    job.trains()
    assert job.status["cluster"]["readyWorkers"] == 2
    assert len(nodes_of_workers(job)) == min(2, nodes_for_pods(cluster))

    (head,), (worker, _), saved = job.pods("head"), job.pods("worker"), job.saved
    lost = time.time()
    job.kubectl("delete", worker, "--force", "--grace-period=0")
    job.recovers()
    report(job.seconds_to_next_update(lost, attempt=2))
    assert job.pods("head") == [head]
    assert len(job.pods("worker")) == 2
    assert worker not in job.pods("worker")
    job.resumes(attempt=2, after=saved)

    status = job.succeeds_after(*LOST_WORKER, "StoppedOnRequest")
    assert status["attempt"] == 2
    assert status["restarts"] <= 1, "free of charge where the driver heard of it in time"


def nodes_for_pods(cluster: Access) -> int:
    """How many take pods that tolerate nothing."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json"))["items"]
    taints = [node["spec"].get("taints", ()) for node in nodes]
    return sum(all(each["effect"] == "PreferNoSchedule" for each in of) for of in taints)


def nodes_of_workers(job: Job) -> set[str]:
    selector = f"--selector={JOB_LABEL}={job.name},{ROLE_LABEL}={WORKER}"
    return set(job.kubectl("get", "pods", selector, "--output=jsonpath={.items[*].spec.nodeName}").split())


@own_cluster_only("drains a node")
def test_a_node_is_emptied_and_the_job_loses_no_step(cluster: Access, job: Job, report: Report) -> None:
    job.apply(**LONG)
    job.trains()
    loses_its_node(cluster, job, "worker", report)


@own_cluster_only("drains a node")
def test_the_node_of_the_head_is_emptied_and_the_job_loses_no_step(cluster: Access, job: Job, report: Report) -> None:
    job.apply(**LONG)
    job.trains()
    loses_its_node(cluster, job, "head", report)


def loses_its_node(cluster: Access, job: Job, role: str, report: Report) -> None:
    """The job, which trains, goes on elsewhere and to its end, without a step that is done again and free of charge.

    role: of the pod whose node is drained, also of operators and whatever else runs there.
    """
    node = job.nodes()[role]
    begin = time.time()
    try:
        cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s")
        report(job.seconds_to_next_update(begin, attempt=2))
        assert node not in job.nodes().values()
        job.resumes(attempt=2, after=job.last_step(attempt=1))
    finally:
        cluster.kubectl("uncordon", node)

    status = job.succeeds_after("StoppedOnRequest")
    assert (status["restarts"], status["attempt"]) == (0, 2), "free of charge"


def test_a_node_that_is_lost_without_a_word_is_left_behind(
    cluster: Access, layout: Layout, job: Job, report: Report
) -> None:
    job.apply(**LONG, recovery={"nodeLostAfter": "5s", "forceDeleteLostPods": True, "evictionGracePeriod": "5s"})
    job.trains()
    name, saved = job.nodes()["worker"], job.saved
    node = Machine(layout.folder, int(name.rpartition("-")[2]))
    lost = time.time()
    node.power_off()
    try:
        job.recovers()
        report(job.seconds_to_next_update(lost, attempt=2))
        assert name not in job.nodes().values()
        job.resumes(attempt=2, after=saved)
    finally:
        up.start(layout, node)
        up.wait_until_ready(layout, cluster, [node])
    assert job.succeeds_after(*LOST_WORKER, "RayLost")["restarts"] == 1


def test_a_node_that_does_not_report_costs_no_step_of_a_job_whose_pods_live(
    cluster: Access, layout: Layout, job: Job
) -> None:
    """Its kubelet is killed, and is back before Kubernetes gives up the pods."""
    job.apply(**LONGER, recovery={"nodeLostAfter": "10m"})
    job.trains()
    pods, name = set(job.pods()), job.nodes()["worker"]
    node = Machine(layout.folder, int(name.rpartition("-")[2]))
    for process in processes.find(layout.folder)[f"{name}/kubelet"]:
        os.kill(process, signal.SIGKILL)
    try:
        job.eventually(lambda: not job.holds("ClusterReady"), "unready pods in the conditions")
        assert f"node {name} of " in job.conditions["ClusterReady"]["message"]
        step = job.step
        while job.step <= step + 4:
            assert (job.phase, job.holds("Running")) == ("Running", True), job.conditions
            time.sleep(0.5)
        assert "PodsNotReady" in job.events()
    finally:
        up.start(layout, node)
        up.wait_until_ready(layout, cluster, [node])
    job.eventually(lambda: job.holds("ClusterReady"), "ready pods")
    assert set(job.pods()) == pods

    status = job.succeeds()
    assert (status["restarts"], status["attempt"]) == (0, 1)
    assert not {"ClusterNotReady", *LOST_WORKER} & {*job.events()}
