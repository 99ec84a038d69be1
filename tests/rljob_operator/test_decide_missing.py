"""What is decided where a job lacks pods that it had: by whether its driver is heard, and what keeps others away."""

from dataclasses import replace

import pytest

from rljob_operator import names
from rljob_operator.decide import decide
from rljob_operator.kube.kinds import VOLUME_CLAIM
from tests.rljob_operator.decisions import living, phase, plan_for
from tests.rljob_operator.snapshots import (
    CLAIM,
    NOW,
    PODS,
    SETTINGS,
    attempted,
    conditions,
    job,
    pod,
    ray_cluster,
    reports,
    server,
    snapshot,
    stamp,
)

HEARD = reports(heartbeat=7)
UNHEARD_NODE = {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        (PODS[:2], "1 of 2 workers ready"),
        (
            [*PODS[:2], pod("worker-1", names.WORKER, conditions=UNHEARD_NODE, node="n-2")],
            "1 of 2 workers ready; nothing is heard of node n-2, which has worker-1",
        ),
    ],
    ids=["that is gone", "of a node that does not report"],
)
def test_a_driver_that_is_heard_runs_also_while_a_pod_is_missing(pods, why):
    """How it ends it says itself; until then it trains on, or saves, and its budget guards the others."""
    runs = plan_for(**living(head=HEARD))
    assert runs.status is not None
    plan = plan_for(base=replace(job(), status=runs.status), cluster=ray_cluster(1), pods=pods, head=HEARD)

    assert phase(plan) == "Running"
    found = conditions(plan.status)
    assert (found["Running"][0], found["ClusterReady"]) == ("True", ("False", "PodsNotReady"))
    assert plan.status is not None
    assert plan.status.conditions[0].message == f"attempt 1 runs; {why}"
    assert [(each.reason, each.message, each.warning) for each in plan.events] == [("PodsNotReady", why, True)]
    (budget,) = (each for each in plan.apply if each["kind"] == "PodDisruptionBudget")
    (before,) = (each for each in runs.apply if each["kind"] == "PodDisruptionBudget")
    assert budget == before
    assert phase(plan_for(silent=100.0, **living(head=HEARD, cluster=ray_cluster(1), pods=pods))) == "Recovering"


def test_a_claim_that_goes_under_a_pod_that_holds_it_stalls_a_job_that_needs_another():
    refused_ = {"type": "PodScheduled", "status": "False", "message": "its claim is being deleted"}
    waits = pod("worker-1", names.WORKER, "Pending", conditions=[refused_])
    goes = {**CLAIM, "metadata": {**CLAIM["metadata"], "deletionTimestamp": stamp(NOW)}}

    def plan(pods, driver="Ended", claim=goes):
        given = snapshot(cluster=ray_cluster(1), pods=pods, **attempted(driver, phase="Recovering"))
        return decide(replace(given, children={**given.children, VOLUME_CLAIM: {"job-checkpoints": claim}}), SETTINGS)

    found = plan([*PODS[:2], waits])
    assert conditions(found.status)["Stalled"] == ("True", "VolumeDeleting")
    assert found.status is not None
    assert found.status.conditions[0].message == (
        "job-checkpoints is being deleted, so no new pod gets it, and head still has it: copy from there what you need,"
        " then suspend and resume the job, which begins anew"
    )
    for other in (plan([waits]), plan(PODS[:2]), plan([*PODS[:2], waits], claim=CLAIM)):
        assert conditions(other.status)["Ready"][1] == "ClusterNotReady"
        assert conditions(other.status)["Stalled"][0] == "False"


PRIORITY = 'FailedCreateHeadPod\npods "job-head" is forbidden: no PriorityClass with name high was found'
QUOTA = 'FailedCreateHeadPod\npods "job-head" is forbidden: exceeded quota: q'
WAY_OUT = "create it, and the job goes on; or set spec.suspend, and name another one in the spec"


def no_claim(name: str, what: str = "not found") -> str:
    return f'0/2 nodes are available: persistentvolumeclaim "{name}" {what}. preemption: not helpful'


GOES = "is being deleted"
DATA_GOES = "PersistentVolumeClaim data is being deleted, and goes when no pod has it"


@pytest.mark.parametrize(
    ("failure", "scheduler", "age", "lacks"),
    [
        (PRIORITY, None, 0, "PriorityClass high does not exist"),
        (QUOTA, None, 600, None),
        (None, no_claim("data"), 61, "PersistentVolumeClaim data does not exist"),
        (PRIORITY, no_claim("data"), 61, "PriorityClass high and PersistentVolumeClaim data do not exist"),
        (None, no_claim("data", GOES), 61, DATA_GOES),
        (PRIORITY, no_claim("data", GOES), 61, f"PriorityClass high does not exist; {DATA_GOES}"),
        (None, no_claim("job-checkpoints", GOES), 600, None),  # made again
        (None, no_claim("data"), 60, None),  # who creates a job may create its claim with it
        (None, no_claim("job-checkpoints"), 600, None),  # made again
        (None, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", 600, None),  # nodes come
    ],
)
def test_what_pods_lack_and_nobody_makes_stalls_the_job_with_the_way_out(failure, scheduler, age, lacks):
    cluster = ray_cluster(0, provisioned=False)
    if failure is not None:
        said = {"type": "ReplicaFailure", "status": "True", "reason": "x", "message": failure}
        cluster["status"]["conditions"].append(said)
    refused_ = [{"type": "PodScheduled", "status": "False", "message": scheduler}] if scheduler else []
    pods = [pod("worker-0", names.WORKER, "Pending", age=age, conditions=refused_)]
    plan = plan_for(cluster=cluster, pods=pods)

    found = conditions(plan.status)
    stalled = ("True", "ObjectMissing") if lacks else ("False", "NotStalled")
    assert (phase(plan), found["Stalled"], found["Reconciling"][0]) == ("Starting", stalled, f"{not lacks}")
    assert plan.status is not None
    ready = plan.status.conditions[0].message
    way_out = WAY_OUT.replace("create it", "then create it anew") if lacks == DATA_GOES else WAY_OUT
    assert ready.endswith(f"; {lacks}: {way_out}") if lacks else WAY_OUT not in ready
    waits_for_a_claim = scheduler is not None and "data" in scheduler
    assert (plan.again_in is not None) == (waits_for_a_claim and not lacks)


def test_a_driver_that_may_live_is_looked_at_also_where_a_claim_is_missing():
    refused_ = [{"type": "PodScheduled", "status": "False", "message": no_claim("data")}]
    lacking = [*PODS[:2], pod("worker-1", names.WORKER, "Pending", conditions=refused_)]
    plan = plan_for(**living(cluster=ray_cluster(1), pods=lacking))
    assert conditions(plan.status)["Ready"][1] == "ClusterNotReady"
    assert plan.again_in == SETTINGS.poll_seconds


def test_what_takes_a_job_out_of_running_is_an_event_once():
    def after(plan, pods):
        return plan_for(base=replace(job(), status=plan.status), cluster=ray_cluster(), pods=pods, head=reports())

    runs = plan_for(**living())
    lost = after(runs, PODS[:2])
    assert phase(lost) == "Recovering"
    assert [(event.reason, event.message, event.warning) for event in lost.events] == [
        ("ClusterNotReady", "1 of 2 workers ready", True)
    ]
    assert after(lost, PODS[:2]).events == ()
    assert [event.reason for event in after(lost, PODS).events] == ["AllPodsReady", "DriverRunning"]


def test_a_driver_is_looked_at_also_while_a_pod_is_missing():
    """It may train on, or end, and no pod tells of it."""
    plan = plan_for(**living(cluster=ray_cluster(1), pods=PODS[:2]))
    assert conditions(plan.status)["Ready"][1] == "ClusterNotReady"
    assert plan.again_in == SETTINGS.poll_seconds


def test_a_claim_that_the_spec_names_is_missing_also_under_the_name_that_the_job_would_give_it():
    refused_ = [{"type": "PodScheduled", "status": "False", "message": no_claim("job-checkpoints")}]
    pods = [pod("worker-0", names.WORKER, "Pending", age=600, conditions=refused_)]
    given = job(checkpoint={"volume": {"existingClaim": "job-checkpoints"}})
    plan = plan_for(base=given, cluster=ray_cluster(0, provisioned=False), pods=pods)
    assert conditions(plan.status)["Stalled"] == ("True", "ObjectMissing")
    assert plan.status is not None
    assert plan.status.conditions[0].message.endswith("or make another RLJob with another claim"), (
        "volumes never change"
    )


def test_a_reward_model_that_still_has_the_claim_is_a_holder_too():
    refused_ = {"type": "PodScheduled", "status": "False", "message": "its claim is being deleted"}
    waits = pod("worker-0", names.WORKER, "Pending", conditions=[refused_])
    holder = server("rm")
    holder["status"]["phase"] = "Running"
    holder["spec"]["volumes"] = [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "job-checkpoints"}}]
    goes = {**CLAIM, "metadata": {**CLAIM["metadata"], "deletionTimestamp": stamp(NOW)}}
    given = snapshot(cluster=ray_cluster(0), pods=[waits, holder], **attempted("Ended", phase="Recovering"))
    seen = replace(given, children={**given.children, VOLUME_CLAIM: {"job-checkpoints": goes}})
    assert conditions(decide(seen, SETTINGS).status)["Stalled"] == ("True", "VolumeDeleting")
    holder["spec"]["volumes"] = []
    assert conditions(decide(seen, SETTINGS).status)["Stalled"][0] == "False"
