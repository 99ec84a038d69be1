"""What is made for reward models."""

import re
from itertools import product
from typing import Any

import pytest

from rljob_api.contract import DriverJob
from rljob_operator import names
from rljob_operator.perform.drift import has_drifted, stamped
from rljob_operator.render import Placement, lasting_children, reward_models_of
from tests.rljob_operator.snapshots import (
    REWARDS,
    SETTINGS,
    UID,
    job,
)


def rendered(placement: Placement | None = None, **spec: Any) -> dict[tuple[str, str], Any]:
    made = reward_models_of(job(**{"rewards": REWARDS, **spec}), "trainer:1", placement or Placement())
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


def pod_of(placement: Placement | None = None, **spec: Any) -> Any:
    return rendered(placement, **spec)["Deployment", "job-rm-rm"]["spec"]["template"]


def container(**spec: Any) -> Any:
    return pod_of(**spec)["spec"]["containers"][0]


def test_a_model_gets_a_deployment_and_a_service_that_finds_its_pods_alone():
    made = rendered()
    assert list(made) == [
        ("Service", "job-rm-rm"),
        ("Deployment", "job-rm-rm"),
        ("Service", "job-rm-judge"),
        ("Deployment", "job-rm-judge"),
    ]
    for model, replicas in (("rm", 2), ("judge", 1)):
        deployed, service = made["Deployment", f"job-rm-{model}"], made["Service", f"job-rm-{model}"]
        selector = {"rljob.dev/job": "job", "rljob.dev/reward-model": model}
        assert deployed["spec"]["replicas"] == replicas
        assert deployed["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == selector
        assert selector.items() <= deployed["spec"]["template"]["metadata"]["labels"].items()
        for each in (deployed, service):
            assert each["metadata"]["ownerReferences"][0]["uid"] == UID
            assert each["metadata"]["labels"][names.JOB_LABEL] == "job"


def test_no_two_models_of_two_jobs_share_a_name():
    parts = [
        *product(("a", "rm", "b"), repeat=1),
        *product(("a", "rm", "b"), repeat=2),
        *product(("a", "rm"), repeat=4),
    ]
    words = ["-".join(each) for each in parts]
    admitted = [word for word in words if not re.search("(^|-)rm-", word)]  # tests/rljob_api: b-rm-c and rm-c are not
    named = [names.reward_model(job, model) for job in words for model in admitted]

    assert len({*admitted} & {"rm", "a-rm", "a-b"}) == 3
    assert len({*named}) == len(named)


def test_the_driver_s_job_says_where_they_are():
    text = lasting_children(job(rewards=REWARDS), SETTINGS, trains=True)[0]["data"]["job.json"]
    assert DriverJob.model_validate_json(text).reward_models == {
        "rm": "http://job-rm-rm:8000", "judge": "http://job-rm-judge:8000",
    }  # fmt: skip


def test_the_server_is_vllm_with_its_gpus_and_the_user_s_arguments_last():
    model = {**REWARDS["models"][0], "gpusPerReplica": 4, "memory": "200Gi", "arguments": ["--max-model-len", "4096"]}
    made = container(rewards={"models": [model]}, cluster={"gpuResource": "amd.com/gpu"})

    assert made["image"] == "trainer:1"
    assert made["command"][:5] == ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/rm"]
    assert made["command"][-4:] == ["--tensor-parallel-size", "4", "--max-model-len", "4096"]
    assert made["resources"]["limits"] == {"memory": "200Gi", "amd.com/gpu": "4"}
    assert "TORCHDYNAMO_DISABLE" not in {each["name"] for each in made["env"]}
    assert container(rewards={"models": [{**model, "image": "vllm:9"}]})["image"] == "vllm:9"


def test_it_is_ready_when_vllm_is_and_has_time_to_load():
    made = container()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert made[probe]["httpGet"] == {"path": "/health", "port": 8000}
    assert made["startupProbe"]["periodSeconds"] * made["startupProbe"]["failureThreshold"] == 3600


def test_its_pod_is_restricted_and_knows_neither_kubernetes_nor_the_job_s_volume():
    spec = pod_of()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["volumes"] == [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]


def test_variables_volumes_and_pull_secrets_reach_it_and_win():
    spec: dict[str, Any] = {
        "rewards": {"models": [{**REWARDS["models"][0], "gpusPerReplica": 0}]},
        "env": [{"name": "TORCHDYNAMO_DISABLE", "value": "0"}, {"name": "HF_HOME", "value": "/models"}],
        "envFrom": [{"secretRef": {"name": "hub"}}],
        "volumes": [{"name": "models", "emptyDir": {}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        "imagePullSecrets": [{"name": "registry"}],
        "cluster": {"priorityClassName": "high"},
    }
    pod, made = pod_of(**spec)["spec"], container(**spec)
    variables = [(each["name"], each["value"]) for each in made["env"]]
    assert ("TORCHDYNAMO_DISABLE", "0") in variables
    assert len({name for name, _ in variables}) == len(variables)
    assert made["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert {"name": "models", "mountPath": "/models"} in made["volumeMounts"]
    assert {"name": "models", "emptyDir": {}} in pod["volumes"]
    assert (pod["imagePullSecrets"], pod["priorityClassName"]) == ([{"name": "registry"}], "high")
    assert list(made["resources"]["limits"]) == ["memory"]


def test_a_template_and_a_placement_are_merged_into_it():
    template = {"spec": {"nodeSelector": {"pool": "a"}, "containers": [{"name": "vllm", "livenessProbe": None}]}}
    placement = Placement(labels={"queue": "q"}, scheduler_name="volcano")
    made = pod_of(placement, rewards={"models": [{**REWARDS["models"][0], "template": template}]})
    assert made["spec"]["nodeSelector"] == {"pool": "a"}
    assert made["spec"]["schedulerName"] == "volcano"
    assert made["metadata"]["labels"]["queue"] == "q"
    assert "livenessProbe" not in made["spec"]["containers"][0]
    assert "readinessProbe" in made["spec"]["containers"][0]


def test_however_long_a_template_is_its_deployment_s_annotations_are_short():
    """Kubernetes allows 256 KiB of them."""
    made = rendered(env=[{"name": f"A{number}", "value": "x" * 4096} for number in range(128)])
    annotations = made["Deployment", "job-rm-rm"]["metadata"]["annotations"]
    assert sum(map(len, annotations.values())) < 1000


def test_a_budget_counts_only_head_and_workers():
    budget = next(
        each
        for each in lasting_children(job(rewards=REWARDS), SETTINGS, trains=True)
        if each["kind"] == "PodDisruptionBudget"
    )
    selector = budget["spec"]["selector"]
    assert selector["matchExpressions"] == [{"key": names.ROLE_LABEL, "operator": "In", "values": ["head", "worker"]}]


@pytest.mark.parametrize("value", ["", 0, False, {}, []])
def test_an_empty_value_that_the_api_server_leaves_out_is_no_drift(value):
    wanted = stamped({"metadata": {"name": "a"}, "spec": {"env": [{"name": "A", "value": value}]}})
    found = {**wanted, "spec": {"env": [{"name": "A"}]}}
    assert not has_drifted(found, wanted)
    assert has_drifted({**wanted, "spec": {"env": [{"name": "A", "value": "x"}]}}, wanted) is (value not in ({}, []))


def test_the_job_s_volume_is_in_servers_where_volume_mounts_name_it():
    mounts = [{"name": "data", "mountPath": "/d"}, {"name": "checkpoints", "mountPath": "/all"}]
    pod = pod_of(volumes=[{"name": "data", "emptyDir": {}}], volumeMounts=mounts)["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert {each["name"] for each in pod["containers"][0]["volumeMounts"]} == set(volumes)
    assert volumes["checkpoints"]["persistentVolumeClaim"] == {"claimName": "job-checkpoints"}
    assert "checkpoints" not in {each["name"] for each in pod_of()["spec"]["volumes"]}


def test_the_job_s_volume_is_in_a_server_whose_template_mounts_it():
    container = {"name": names.SERVER_CONTAINER, "volumeMounts": [{"name": "checkpoints", "mountPath": "/ck"}]}
    model = {**REWARDS["models"][0], "template": {"spec": {"containers": [container]}}}
    pod = pod_of(rewards={"models": [model]})["spec"]
    assert [each["name"] for each in pod["volumes"]] == ["shared-memory", "checkpoints"]
