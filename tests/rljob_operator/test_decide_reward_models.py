"""What is decided for reward models: what waits for them, and what takes them away."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from rljob_operator.kube.kinds import DEPLOYMENT, SERVICE, Ref
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import decide
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


def plan_for(**given: Any) -> Plan:
    return decide(snapshot(**{"base": JOB, **given}), SETTINGS)


def applied(plan: Plan) -> list[tuple[str, str]]:
    kinds = ("Deployment", "Service")
    return [(each["kind"], each["metadata"]["name"]) for each in plan.apply if each["kind"] in kinds]


def living(**given: Any) -> Plan:
    return plan_for(cluster=ray_cluster(), pods=PODS, head=reports(), models=SERVED, **attempted("Submitted"), **given)


REFS = [Ref(DEPLOYMENT, "team", f"job-rm-{model}", f"uid-{model}") for model in ("rm", "judge")]


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
