"""The PodGroup of a job, and what names it in its pods: beyond `golden_messages.txt`."""

from typing import Any

import pytest

from rljob_api.v1alpha1 import GangScheduler
from rljob_operator import names
from rljob_operator.kube.kinds import Manifest
from rljob_operator.observe.pods import troubles
from rljob_operator.render import cluster_of, pod_group_of, reward_models_of
from tests.rljob_operator.decisions import living
from tests.rljob_operator.gangs import gang, group, plan_of
from tests.rljob_operator.snapshots import REWARDS, SETTINGS, pod

CLUSTER: dict[str, Any] = {
    "nodes": 3, "gpusPerNode": 4, "priorityClassName": "high",
    "head": {"cpu": "1", "memory": "2Gi"},
    "worker": {"cpu": "500m", "memory": "4Gi", "template": {"spec": {
        "initContainers": [{"name": "first", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}},
                           {"name": "beside", "restartPolicy": "Always", "resources": {"limits": {"rdma/ib": "1"}}}],
        "containers": [{"name": "odd", "resources": {"requests": {"cpu": "much"}, "limits": ["x"]}}]}}},
}  # fmt: skip
SERVER = {"models": [REWARDS["models"][0] | {"replicas": 2, "cpu": "1", "memory": "1Gi", "gpusPerReplica": 1}]}
SCHEDULERS: list[GangScheduler] = ["volcano", "coscheduling", "native"]


def spec_of(scheduler: str) -> Manifest:
    made = pod_group_of(gang(scheduler, cluster=CLUSTER, rewards=SERVER), SETTINGS)
    assert made is not None
    spec: Manifest = made["spec"]
    return spec


def test_a_pod_group_asks_for_all_pods_and_what_they_request_together():
    volcano, gib = spec_of("volcano"), 1 << 30
    assert volcano["minMember"] == 1 + 3 + 2
    resources = volcano["minResources"]
    assert resources["cpu"] == "9.050", "the agent's 50m, and of each worker the init container's 2"
    assert int(resources["memory"]) == (2 + 3 * 4 + 2) * gib + 256 * (1 << 20)
    assert (resources["nvidia.com/gpu"], resources["rdma/ib"]) == ("14", "3")
    assert volcano["priorityClassName"] == "high"
    assert spec_of("coscheduling") == {"minMember": 6, "minResources": resources}
    assert spec_of("native") == {"schedulingPolicy": {"gang": {"minCount": 6}}}


@pytest.mark.parametrize(
    ("scheduler", "mark", "name"),
    [
        ("volcano", ("annotations", names.VOLCANO_GROUP_ANNOTATION), "volcano"),
        ("coscheduling", ("labels", names.COSCHEDULING_GROUP_LABEL), "own"),
        ("native", ("labels", names.POD_GROUP_LABEL), None),
    ],
)
def test_every_pod_names_its_pod_group_and_its_scheduler(scheduler, mark, name):
    base, settings = gang(scheduler, rewards=REWARDS), SETTINGS.model_copy(update={"coscheduling_scheduler": "own"})
    ray = cluster_of(base, "trainer:1", settings, {})["spec"]
    servers = [each for each in reward_models_of(base, "trainer:1", settings, {}) if each["kind"] == "Deployment"]
    templates = [ray["headGroupSpec"]["template"], ray["workerGroupSpecs"][0]["template"]]
    for template in (*templates, *(each["spec"]["template"] for each in servers)):
        assert template["metadata"][mark[0]][mark[1]] == group(base)["metadata"]["name"]
        assert template["spec"].get("schedulerName") == name


def test_a_scheduler_that_says_nothing_about_a_pod_is_named():
    silent, told, usual = (pod(name, names.HEAD, "Pending") for name in ("silent", "told", "usual"))
    silent["spec"]["schedulerName"] = told["spec"]["schedulerName"] = "volcano"
    usual["spec"]["schedulerName"] = "default-scheduler"
    told["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": "not enough pods"}]
    first, second = troubles([silent, told, usual])
    assert "scheduler volcano" in first
    assert "not enough pods" in second


def test_a_pod_group_follows_the_replicas_of_reward_models_but_that_of_kubernetes():
    for scheduler in SCHEDULERS:
        before, after = gang(scheduler, rewards=SERVER), gang(scheduler, rewards=REWARDS)
        made = [each for each in plan_of(after, group(before), **living()).apply if each["kind"] == "PodGroup"]
        counts = [each["spec"].get("minMember") for each in made]
        assert counts == ([] if scheduler == "native" else [1 + 2 + 3])
