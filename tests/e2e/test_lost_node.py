"""A node that nobody hears of any more, on a real control plane: Kubernetes evicts, the operator recovers."""

from pathlib import Path

import pytest
from kubernetes.client import ApiClient

from e2e.cluster.access import Access
from tests.e2e.jobs import Jobs
from tests.e2e.kwok_kubelet import kubelet
from tests.e2e.operator_process import running_operator
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_head import PlayedHeads


@pytest.mark.slow
def test_a_job_leaves_a_node_that_is_lost_by_force_where_it_may(
    cluster: Access, client: ApiClient, namespace: str, tmp_path: Path
):
    jobs = Jobs(client, namespace)
    with (
        PlayedHeads() as heads,
        kubelet(cluster, tmp_path) as played,
        running_operator(cluster, namespace, heads.template, tmp_path),
    ):
        pods = {"template": {"spec": {"nodeName": played.node, "terminationGracePeriodSeconds": 1}}}
        heads.add(namespace, "job")
        jobs.create(
            cluster={"nodes": 1, "gpusPerNode": 1, "head": pods, "worker": pods}, recovery={"nodeLostAfter": "1s"}
        )
        eventually(lambda: heads.head(namespace, "job").drivers)[-1].start()
        jobs.reaches("Running")
        (before,) = jobs.clusters()

        played.process.kill()
        jobs.reaches("Recovering")
        eventually(lambda: f"on node {played.node}: lost with its node" in jobs.conditions()["Ready"][2])
        assert len(jobs.pods()) == 2, "nobody knows that they have ended"

        jobs.patch(recovery={"forceDeleteLostPods": True})
        eventually(lambda: [each for each in jobs.clusters() if each["metadata"]["uid"] != before["metadata"]["uid"]])
        assert jobs.status()["restarts"] == 1
