"""Reward models of a job on a real control plane, whose Deployments KWOK's nodes carry out; heads are played."""

import base64
import json
from typing import Any

from kubernetes.client import AppsV1Api, CoreV1Api

from rljob_operator.job import read_job
from rljob_operator.kube.kinds import Ref
from rljob_operator.perform.drift import has_drifted, stamped
from rljob_operator.render import reward_models_of
from rljob_operator.runtime.key import NAME as KEY
from rljob_operator.settings import Settings
from tests.e2e.jobs import Jobs, runs
from tests.e2e.lives import MODEL
from tests.e2e.waiting import eventually

JUDGE: dict[str, Any] = {
    "name": "judge", "path": "org/chat", "kind": "generative", "promptTemplate": "{response}?",
    "scorePattern": "([0-9])", "gpusPerReplica": 0,
}  # fmt: skip


def servers_of(jobs: Jobs, model: str) -> list[Any]:
    return [pod for pod in jobs.pods() if (pod.metadata.labels or {}).get("rljob.dev/reward-model") == model]


def test_they_live_as_long_as_the_job_runs_and_follow_its_spec(operator, cluster, heads, jobs):
    heads.add(jobs.namespace, "job")
    jobs.create(rewards={"models": [MODEL, JUDGE]})
    runs(heads, jobs)

    assert jobs.conditions()["RewardModelsReady"][:2] == ("True", "AllServersReady")
    assert [(each["name"], each["readyReplicas"]) for each in jobs.status()["rewardModels"]] == [
        ("rm", 2),
        ("judge", 1),
    ]
    assert jobs.services() == ["job-rm-judge", "job-rm-rm"]
    assert len(jobs.pods()) == 3 + 3
    core: Any = CoreV1Api(jobs.client)
    told = core.read_namespaced_config_map("job-job", jobs.namespace).data["job.json"]
    assert json.loads(told)["rewardModels"]["rm"] == "http://job-rm-rm:8000"
    key = base64.b64decode(core.read_namespaced_secret(KEY, jobs.namespace).data["key"])
    for wanted in reward_models_of(read_job(jobs.get()), "trainer:1", Settings(key=key), {}):
        found = json.loads(cluster.kubectl("get", "--raw", Ref.of(wanted).path()))
        assert not has_drifted(found, stamped(wanted)), "what the API server adds is no drift"

    scaled = {"spec": {"replicas": 0}}
    AppsV1Api(jobs.client).patch_namespaced_deployment("job-rm-rm", jobs.namespace, scaled)
    eventually(lambda: jobs.servers()["job-rm-rm"].spec.replicas == 2)
    generation = jobs.servers()["job-rm-rm"].metadata.generation
    jobs.patch(rewards={"models": [{**MODEL, "replicas": 1}, JUDGE]})
    eventually(lambda: len(servers_of(jobs, "rm")) == 1 and jobs.conditions()["RewardModelsReady"][0] == "True")
    assert jobs.servers()["job-rm-rm"].metadata.generation == generation + 1, "written once"
    assert (jobs.status()["phase"], jobs.status()["attempt"]) == ("Running", 1)


def test_what_others_put_beside_ours_is_left_there_and_what_is_ours_is_put_right(operator, cluster, heads, jobs):
    heads.add(jobs.namespace, "job")
    jobs.create(rewards={"models": [MODEL]})
    runs(heads, jobs)

    def applied() -> float:
        return operator.metric("rljob_operator_api_requests_total", verb="apply", resource="deployments")

    def server() -> Any:
        return jobs.servers()["job-rm-rm"].spec.template.spec.containers[0]

    assert applied() == 1
    where = f"--namespace={jobs.namespace}"
    cluster.kubectl("set", "env", "deployment/job-rm-rm", "FOO=bar", where)
    looks = operator.metric("rljob_operator_reconcile_seconds_count")
    eventually(lambda: operator.metric("rljob_operator_reconcile_seconds_count") > looks + 5)
    assert applied() == 1, "it cannot be taken away"
    cluster.kubectl("set", "image", "deployment/job-rm-rm", "vllm=theirs", where)
    eventually(lambda: server().image == "trainer:1")
    assert "FOO" in [variable.name for variable in server().env]
    assert applied() == 2


def test_suspend_removes_them_and_so_does_the_end(operator, heads, jobs):
    head = heads.add(jobs.namespace, "job")
    jobs.create(rewards={"models": [MODEL]})
    driver = runs(heads, jobs)
    jobs.patch(suspend=True)
    eventually(lambda: head.volume.request)
    assert "job-rm-rm" in jobs.servers(), "the step that is finished first has to be scored"
    driver.end(76, "StoppedOnRequest", "saved")
    jobs.reaches("Suspended")
    assert (jobs.servers(), jobs.services(), jobs.pods()) == ({}, [], [])

    jobs.patch(suspend=False, rewards={"models": [{**MODEL, "path": "org/other", "replicas": 1}]})
    runs(heads, jobs, attempt=2).end(0)
    jobs.reaches("Succeeded")
    eventually(lambda: not jobs.servers() and not jobs.services() and not jobs.pods())


def test_a_server_that_fits_nowhere_holds_the_driver_back_until_it_is_not_asked_for(operator, heads, jobs):
    head = heads.add(jobs.namespace, "job")
    jobs.create(rewards={"models": [{**MODEL, "gpusPerReplica": 16, "replicas": 1}]})

    eventually(lambda: "is not scheduled" in jobs.conditions().get("RewardModelsReady", ("", "", ""))[2])
    eventually(lambda: jobs.conditions()["Ready"][1] == "RewardModelsNotReady")
    message = jobs.conditions()["Ready"][2]
    assert message.startswith("reward model rm: 0 of 1 servers ready; job-rm-rm-")
    assert "Insufficient nvidia.com/gpu" in message
    assert (jobs.status()["phase"], head.drivers) == ("Starting", [])

    jobs.delete()
    eventually(lambda: not jobs.exists())
    assert (jobs.servers(), jobs.services(), jobs.pods()) == ({}, [], [])
