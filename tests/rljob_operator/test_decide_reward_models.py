"""What is decided for reward models: what waits for them, and what takes them away."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.kube.kinds import DEPLOYMENT, SERVICE, Ref
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import decide, phase
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
        {
            "name": "vllm",
            "image": "vllm:9",
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}},
        }
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


def test_servers_that_are_lost_while_the_job_runs_are_an_event_once():
    def after(status, models):
        base = replace(JOB, status=status)
        return plan_for(base=base, cluster=ray_cluster(), pods=PODS, head=reports(), models=models)

    runs = plan_for(cluster=ray_cluster(), pods=PODS, head=reports(), models=SERVED, **attempted("Submitted"))
    lost = after(runs.status, SERVED[:1])
    assert [(event.reason, event.message, event.warning) for event in lost.events] == [
        ("ServersNotReady", "reward model judge: 0 of 1 servers ready", True)
    ]
    assert after(lost.status, SERVED[:1]).events == ()
    assert [event.reason for event in after(lost.status, SERVED).events] == ["AllServersReady"]


def test_the_next_attempt_waits_for_a_lost_server():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, models=SERVED[:1], **attempted("Ended", phase="Recovering"))

    assert plan.status is not None
    assert (plan.status.phase, plan.status.attempt) == ("Recovering", 1)
    assert conditions(plan.status)["Ready"] == ("False", "RewardModelsNotReady")
    assert plan.again_in == WAIT_SECONDS, "a watch may have told us before we knew it"


def test_an_image_that_cannot_be_pulled_is_terminal_and_names_the_field():
    plan = plan_for(cluster=ray_cluster(1), pods=[*PODS, server("judge", **NO_IMAGE)], models=SERVED)

    assert plan.status is not None
    assert plan.status.phase == "Failed"
    failed = next(each for each in plan.status.conditions if each.type == "Failed")
    assert failed.reason == "ImageNotUsable"
    assert failed.message == (
        "job-rm-judge-x: ImagePullBackOff of image vllm:9: not found. Set spec.rewards.models[1].image, or"
        " spec.cluster.image, to an image that can be pulled, in another RLJob"
    )


@pytest.mark.parametrize("models", [[], SERVED], ids=["none is there", "it is newer"])
def test_an_image_of_an_older_deployment_s_pods_is_not_the_job_s(models):
    left = server("judge", age=800, **NO_IMAGE)
    plan = plan_for(cluster=ray_cluster(1), pods=[*PODS, left], models=models)
    assert plan.status is not None
    assert plan.status.phase == "Starting"


@pytest.mark.parametrize(("image", "phase_"), [("vllm:9", "Failed"), ("vllm:10", "Starting")])
def test_of_pods_of_the_deployment_s_own_second_its_images_tell(image, phase_):
    template = {"spec": {"containers": [{"name": "vllm", "image": image}]}}
    made = deployment("judge", 0) | {"spec": {"template": template}}
    twin = server("judge", age=700, **NO_IMAGE)
    twin["spec"] = {"containers": [{"name": "vllm", "image": "vllm:9"}, {"name": "sidecar", "image": "s"}]}
    assert phase(plan_for(cluster=ray_cluster(1), pods=[*PODS, twin], models=[SERVED[0], made])) == phase_


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


def test_a_new_operator_s_image_is_for_the_next_cluster():
    living = ray_cluster()
    living["metadata"]["annotations"]["rljob.dev/image"] = "trainer:old"
    given: dict[str, Any] = {"pods": PODS, "head": reports()} | attempted("Submitted")
    for cluster, image in ((living, "trainer:old"), (ray_cluster(), SETTINGS.trainer_image)):
        (made,) = [each for each in plan_for(cluster=cluster, **given).apply if each["kind"] == "Deployment"][:1]
        assert made["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_a_template_that_cannot_be_merged_fails_the_job_with_its_path():
    model = {**REWARDS["models"][0], "template": {"spec": {"containers": [{"name": "vllm", "env": "x"}]}}}
    plan = plan_for(base=job(rewards={"models": [model]}))

    assert plan.status is not None
    assert plan.status.phase == "Failed"
    where = "spec.rewards.models[0].template.spec.containers[0].env"
    assert f"{where} must be a list" in plan.status.conditions[0].message


def test_one_that_an_older_operator_merged_stays_where_an_attempt_has_begun():
    side = {"name": "side", "image": "i"}
    model = {**REWARDS["models"][0], "template": {"spec": {"containers": [side, side]}}}
    plan = living(base=job(rewards={"models": [model]}))

    assert plan.status is not None
    assert (plan.status.phase, plan.delete) == ("Running", ())
    assert "containers[1] has the same name side" in plan.status.conditions[0].message


NO_CLAIM = {"type": "PodScheduled", "status": "False", "message": 'persistentvolumeclaim "rm-data" not found'}
NO_PRIORITY = {
    "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
    "message": "pods is forbidden: no PriorityClass with name high was found",
}  # fmt: skip


@pytest.mark.parametrize(
    ("deployed", "pod", "reason", "words"),
    [
        ({}, {"conditions": [NO_CLAIM]}, "ObjectMissing", "PersistentVolumeClaim rm-data does not exist: create it"),
        ({"conditions": [NO_PRIORITY]}, {}, "ObjectMissing", "PriorityClass high does not exist: create it"),
        ({}, NO_IMAGE, "ImageNotUsable", "image vllm:9: not found. Set spec.rewards.models[0].image"),
        ({}, NO_IMAGE, "ImageNotUsable", "to an image that can be pulled, with spec.suspend: true meanwhile"),
    ],
)
def test_what_no_waiting_mends_stalls_a_job_that_goes_on(deployed, pod, reason, words):
    given: dict[str, Any] = {
        "pods": [*PODS, server("rm", **pod)],
        "models": [deployment("rm", 0, **deployed), SERVED[1]],
    }
    seen = snapshot(JOB, cluster=ray_cluster(), **given, **attempted("Ended", phase="Recovering"))
    plan = decide(seen, SETTINGS)
    assert conditions(plan.status)["Stalled"] == ("True", reason)
    assert plan.status is not None
    assert words in plan.status.conditions[0].message
