"""Reward models: what is made for them, what waits for them, and what takes them away."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.contract import DriverJob
from rljob_operator import names
from rljob_operator.decide import decide
from rljob_operator.drift import has_drifted, stamped
from rljob_operator.kube.kinds import DEPLOYMENT, SERVICE, Ref
from rljob_operator.plan import Plan
from rljob_operator.render import Placement, lasting_children, reward_models_of
from rljob_operator.snapshot import Snapshot
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    REWARDS,
    SERVED,
    SETTINGS,
    UID,
    attempted,
    conditions,
    deployment,
    job,
    ray_cluster,
    reports,
    server,
    snapshot,
)

JOB = job(rewards=REWARDS)
PENDING = {"containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "ContainerCreating"}}}]}
CRASHED: dict[str, Any] = {
    "containerStatuses": [
        {
            "name": "vllm",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "...\nno rm\n"}},
        }
    ]
}
NO_IMAGE = {
    "containerStatuses": [
        {"name": "vllm", "image": "vllm:9", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    ]
}


def plan_for(**given: Any) -> Plan:
    return decide(snapshot(**{"base": JOB, **given}), SETTINGS)


def applied(plan: Plan) -> list[tuple[str, str]]:
    kinds = ("Deployment", "Service")
    return [(each["kind"], each["metadata"]["name"]) for each in plan.apply if each["kind"] in kinds]


def living(**given: Any) -> Plan:
    return plan_for(cluster=ray_cluster(), pods=PODS, head=reports(), models=SERVED, **attempted("Submitted"), **given)


ALL = [
    ("Service", "job-rm-rm"), ("Deployment", "job-rm-rm"), ("Service", "job-rm-judge"), ("Deployment", "job-rm-judge"),
]  # fmt: skip
REFS = [Ref(DEPLOYMENT, "team", f"job-rm-{model}", f"uid-{model}") for model in ("rm", "judge")]


# ---- decisions


def test_they_start_with_the_cluster_and_are_there_as_long_as_the_job_runs():
    assert applied(plan_for()) == ALL
    assert applied(plan_for(cluster=ray_cluster(1), pods=PODS)) == ALL
    assert applied(living()) == ALL
    assert [each["kind"] for each in plan_for().create] == ["Secret", "RayCluster"]


@pytest.mark.parametrize(
    ("models", "pods", "words"),
    [
        ([], [], "reward model rm: 0 of 2 servers ready; reward model judge: 0 of 1 servers ready"),
        ([deployment("rm", 1), SERVED[1]], [server("rm", **PENDING)], "reward model rm: 1 of 2 servers ready"),
        ([deployment("rm", 2, generation=2), SERVED[1]], [], "reward model rm: 0 of 2 servers ready"),
        ([deployment("rm", 2, updatedReplicas=1), SERVED[1]], [], "reward model rm: 1 of 2 servers ready"),
        (
            [deployment("rm", 0), SERVED[1]],
            [server("rm", **CRASHED)],
            "reward model rm: 0 of 2 servers ready; job-rm-rm-x: CrashLoopBackOff: back-off: Error with code 1: no rm",
        ),
        (
            [
                deployment(
                    "rm",
                    0,
                    conditions=[{"type": "ReplicaFailure", "status": "True", "reason": "x", "message": "quota"}],
                )
            ],
            [],
            "reward model rm: 0 of 2 servers ready; quota; reward model judge: 0 of 1 servers ready",
        ),
    ],
)
def test_no_driver_starts_before_all_servers_are_ready_and_the_condition_says_why(models, pods, words):
    plan = plan_for(cluster=ray_cluster(), pods=[*PODS, *pods], models=models)

    assert plan.status is not None
    assert (plan.status.phase, plan.status.attempt) == ("Starting", 0)
    said = {each.type: each.message for each in plan.status.conditions}
    assert said["Ready"] == words
    reason = "ServersNotReady" if models else "NoServers"
    assert conditions(plan.status)["RewardModelsReady"] == ("False", reason)
    assert not models or said["RewardModelsReady"] == words


def test_when_all_are_ready_the_attempt_is_reserved():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, models=SERVED)

    assert plan.status is not None
    assert plan.status.attempt == 1
    assert conditions(plan.status)["RewardModelsReady"] == ("True", "AllServersReady")
    assert [(each.name, each.ready_replicas, each.desired_replicas) for each in plan.status.reward_models] == [
        ("rm", 2, 2), ("judge", 1, 1),
    ]  # fmt: skip
    assert "AllServersReady" in [event.reason for event in plan.events]


def test_a_server_that_is_lost_does_not_disturb_a_driver_that_runs():
    lost = [deployment("rm", 0), SERVED[1]]
    pods = [*PODS, server("rm", **NO_IMAGE)]
    for state in ("Reserved", "Submitted"):
        plan = plan_for(cluster=ray_cluster(), pods=pods, head=reports(), models=lost, **attempted(state))
        assert plan.status is not None
        assert plan.status.phase == "Running"
        assert conditions(plan.status)["Ready"][0] == "True"
        assert conditions(plan.status)["RewardModelsReady"] == ("False", "ServersNotReady")
        assert plan.delete == ()


def test_the_next_attempt_waits_for_a_lost_server():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, models=SERVED[:1], **attempted("Ended", phase="Recovering"))

    assert plan.status is not None
    assert (plan.status.phase, plan.status.attempt) == ("Recovering", 1)
    assert conditions(plan.status)["Ready"] == ("False", "RewardModelsNotReady")


def test_an_image_that_cannot_be_pulled_is_terminal_and_names_the_field():
    plan = plan_for(cluster=ray_cluster(1), pods=[*PODS, server("judge", **NO_IMAGE)], models=SERVED)

    assert plan.status is not None
    assert plan.status.phase == "Failed"
    failed = next(each for each in plan.status.conditions if each.type == "Failed")
    assert failed.reason == "ImageNotUsable"
    assert failed.message == (
        "job-rm-judge-x: ErrImagePull of image vllm:9: not found. Set spec.rewards.models[1].image, or"
        " spec.cluster.image, to an image that can be pulled"
    )


def test_a_cluster_is_rebuilt_beside_living_servers():
    plan = plan_for(pods=[server("rm"), server("judge")], models=SERVED, **attempted("Ended", phase="Recovering"))

    assert [each["kind"] for each in plan.create] == ["Secret", "RayCluster"]
    assert plan.delete == ()


def test_suspend_deletes_them_only_when_the_driver_has_stopped():
    suspended = job(rewards=REWARDS, suspend=True)
    asked = living(base=suspended)
    assert (asked.status and asked.status.phase, asked.delete, applied(asked)) == ("Suspending", (), [])

    given = attempted("Ended", phase="Suspending")
    given_back = plan_for(base=suspended, cluster=ray_cluster(), pods=PODS, models=SERVED, **given)
    assert [each.kind.name for each in given_back.delete] == ["RayCluster", "Deployment", "Deployment"]

    going = plan_for(base=suspended, pods=[server("rm")], **given)
    assert going.status is None or going.status.phase == "Suspending"
    gone = plan_for(base=suspended, **given)
    assert gone.status is not None
    assert gone.status.phase == "Suspended"
    assert conditions(gone.status)["RewardModelsReady"] == ("False", "NoServers")
    assert applied(gone) == []


def test_the_end_and_deletion_take_them_away():
    over = {"phase": "Succeeded", "completion_time": NOW - timedelta(hours=1)}
    assert set(REFS) <= set(plan_for(cluster=ray_cluster(), models=SERVED, **over).delete)

    deleted = replace(JOB, deleted=NOW)
    plan = plan_for(base=deleted, models=SERVED)
    assert list(plan.delete) == REFS
    assert applied(plan) == []
    assert plan.finalizer is None
    assert plan_for(base=deleted).finalizer is False


def test_what_the_spec_does_not_name_any_more_is_deleted():
    old = {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "job-rm-old", "namespace": "team", "uid": "u", "ownerReferences": [
            {"uid": UID, "controller": True}]},
    }  # fmt: skip
    before = snapshot(JOB, cluster=ray_cluster(), pods=PODS, models=[*SERVED, deployment("old", 1)])
    children = {**before.children, SERVICE: {"job-rm-old": old}}
    plan = decide(Snapshot(before.job, NOW, children, PODS), SETTINGS)

    assert list(plan.delete) == [
        Ref(DEPLOYMENT, "team", "job-rm-old", "uid-old"), Ref(SERVICE, "team", "job-rm-old", "u"),
    ]  # fmt: skip


def test_a_template_that_cannot_be_merged_fails_the_job_with_its_path():
    model = {**REWARDS["models"][0], "template": {"spec": []}}
    plan = plan_for(base=job(rewards={"models": [model]}))

    assert plan.status is not None
    assert plan.status.phase == "Failed"
    assert "spec.rewards.models[rm].template.spec must be an object" in plan.status.conditions[0].message


# ---- objects


def rendered(placement: Placement | None = None, **spec: Any) -> dict[tuple[str, str], Any]:
    made = reward_models_of(job(**{"rewards": REWARDS, **spec}), "trainer:1", placement or Placement())
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


def pod_of(placement: Placement | None = None, **spec: Any) -> Any:
    return rendered(placement, **spec)["Deployment", "job-rm-rm"]["spec"]["template"]


def container(**spec: Any) -> Any:
    return pod_of(**spec)["spec"]["containers"][0]


def test_a_model_gets_a_deployment_and_a_service_that_finds_its_pods_alone():
    made = rendered()
    assert list(made) == ALL
    for model, replicas in (("rm", 2), ("judge", 1)):
        deployed, service = made["Deployment", f"job-rm-{model}"], made["Service", f"job-rm-{model}"]
        selector = {"rljob.dev/job": "job", "rljob.dev/reward-model": model}
        assert deployed["spec"]["replicas"] == replicas
        assert deployed["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == selector
        assert selector.items() <= deployed["spec"]["template"]["metadata"]["labels"].items()
        for each in (deployed, service):
            assert each["metadata"]["ownerReferences"][0]["uid"] == UID
            assert each["metadata"]["labels"][names.JOB_LABEL] == "job"


def test_the_driver_s_job_says_where_they_are():
    text = lasting_children(JOB, SETTINGS)[0]["data"]["job.json"]
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


def test_a_budget_counts_only_head_and_workers():
    budget = next(each for each in lasting_children(JOB, SETTINGS) if each["kind"] == "PodDisruptionBudget")
    selector = budget["spec"]["selector"]
    assert selector["matchExpressions"] == [{"key": names.ROLE_LABEL, "operator": "In", "values": ["head", "worker"]}]


@pytest.mark.parametrize("value", ["", 0, False, {}, []])
def test_an_empty_value_that_the_api_server_leaves_out_is_no_drift(value):
    wanted = stamped({"metadata": {"name": "a"}, "spec": {"env": [{"name": "A", "value": value}]}})
    found = {**wanted, "spec": {"env": [{"name": "A"}]}}
    assert not has_drifted(found, wanted)
    assert has_drifted({**wanted, "spec": {"env": [{"name": "A", "value": "x"}]}}, wanted) is (value not in ({}, []))
