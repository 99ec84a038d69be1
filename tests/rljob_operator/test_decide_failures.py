"""What is decided when a driver, a pod or a cluster fails: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.v1alpha1 import Condition, RecoveryStatus, RLJobStatus
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.kube.errors import Forbidden
from rljob_operator.kube.kinds import Manifest, Ref
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import (
    broken,
    decide,
    ended,
    leaving_head,
    living,
    phase,
    plan_for,
    recovering,
    refused,
)
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    job,
    pod,
    ray_cluster,
    snapshot,
    stamp,
)


def test_a_log_that_ends_in_what_is_nested_without_end_is_quoted_as_it_is():
    nested = "error: a\n" + "[" * 100_000
    plan = plan_for(**living(head=HeadReport(RayJob(RayJobState.FAILED, nested, driver_exit_code=79))))
    assert plan.status is not None
    (ready,) = [each for each in plan.status.conditions if each.type == "Ready"]
    assert (ready.reason, ready.message[-9:]) == ("StorageFull", "[" * 9)


def ending(name: str, role: str, seconds: int = 150, **status: Any) -> Manifest:
    found = pod(name, role, **status)
    found["metadata"] |= {"deletionTimestamp": stamp(NOW), "deletionGracePeriodSeconds": seconds}
    return found


WORKERS = [ending("worker-0", names.WORKER), ending("worker-1", names.WORKER)]
OF_LOST_NODE = ending(
    "worker-1", names.WORKER,
    conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}],
)  # fmt: skip


@pytest.mark.parametrize(("action", "cluster", "pods", "hurried"), [
    ("rebuild_cluster", ray_cluster(-1), PODS[1:], PODS[1:]),
    ("rebuild_cluster", ray_cluster(), [leaving_head(), *PODS[1:]], [leaving_head(), *PODS[1:]]),
    ("rebuild_cluster", None, WORKERS, WORKERS),
    ("rebuild_cluster", None, [WORKERS[0], ending("worker-1", names.WORKER, seconds=1)], WORKERS[:1]),
    ("rebuild_cluster", None, [WORKERS[0], PODS[2]], WORKERS[:1]),
    ("rebuild_cluster", None, [WORKERS[0], OF_LOST_NODE], WORKERS[:1]),
    ("restart_driver", ray_cluster(), PODS, []),
    ("restart_driver", None, WORKERS, []),
])  # fmt: skip
def test_pods_of_a_cluster_that_is_replaced_need_not_wait_for_anything(action, cluster, pods, hurried):
    plan = plan_for(cluster=cluster, pods=pods, **recovering(action))
    assert plan.short_grace == tuple(map(Ref.of, hurried))
    assert plan.force == ()


def test_a_message_is_never_longer_than_a_condition_holds():
    plan = plan_for(**ended(66, "RewardError", "x" * 32_768, "spec.rewards.functions[0].source"))

    assert phase(plan) == "Failed"
    assert plan.status is not None
    assert max(len(each.message) for each in plan.status.conditions) == 32_768


LADDER = [(0, "restart_driver"), (2, "replace_pods"), (4, "rebuild_cluster")]


SLOW = job(recovery={"backoff": {"initial": "90s", "factor": 1, "max": "2m"}})
RANK = "driver exited with code 75 (RankLost): rank-3 died"
WAITING = f"The next attempt starts at {stamp(NOW + timedelta(seconds=90))} or later: {RANK}"


@pytest.mark.parametrize(("before", "action"), LADDER[1:])
def test_a_wait_tells_of_the_failure_and_of_nothing_that_is_over(before, action):
    levels = ["driver", "driver", "pods", "pods"][:before]
    spent = RecoveryStatus(charged=before, cures={level: levels.count(level) for level in levels})
    failed = plan_for(base=SLOW, **ended(75, "RankLost", "rank-3 died", recovery=spent)).status
    assert failed is not None
    assert failed.recovery.action == action

    cluster = ray_cluster()
    replacing = decide(snapshot(replace(SLOW, status=failed), cluster=cluster, pods=PODS), SETTINGS).status
    assert replacing is not None
    assert said(replacing).reason in ("ReplacingPods", "RebuildingCluster")
    assert said(replacing).message.endswith(f": {RANK}")

    fresh = [PODS[0], pod("new-0", names.WORKER, age=0), pod("new-1", names.WORKER, age=0)]
    done: dict[str, Any] = {} if action == "rebuild_cluster" else {"cluster": cluster, "pods": fresh}
    told = replacing
    for seconds in (1, 20, 80):
        seen = snapshot(replace(SLOW, status=told), seconds=seconds, written=NOW, **done)
        plan = decide(seen, SETTINGS)
        told = plan.status or told
        assert (said(told).reason, said(told).message, plan.again_in) == ("RankLost", WAITING, 90 - seconds)

    after = decide(snapshot(replace(SLOW, status=told), seconds=90, **done), SETTINGS).status
    assert after is not None
    assert "RankLost" not in said(after).reason


@pytest.mark.parametrize("spoils", [
    lambda seen: broken(seen, KeyError("spec")), lambda seen: refused(seen, Plan(), Forbidden("exceeded quota")),
])  # fmt: skip
def test_a_wait_tells_of_the_failure_again_after_trouble_that_has_passed(spoils):
    failed = plan_for(base=SLOW, **ended(75, "RankLost", "rank-3 died", recovery=RecoveryStatus(cures={"driver": 1})))
    assert failed.status is not None
    waiting = snapshot(replace(SLOW, status=failed.status), cluster=ray_cluster(), pods=PODS, written=NOW)
    spoilt = spoils(waiting).status
    assert spoilt is not None
    assert said(spoilt).reason in ("OperatorError", "ObjectForbidden")
    after = decide(replace(waiting, job=replace(SLOW, status=spoilt)), SETTINGS).status
    assert after is not None
    assert (said(after).reason, said(after).message) == ("RankLost", WAITING)


def said(status: RLJobStatus) -> Condition:
    return next(each for each in status.conditions if each.type == "Ready")


def test_replaced_pods_are_those_of_before_the_failure():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("replace_pods"))
    assert sorted(ref.name for ref in plan.delete) == ["worker-0", "worker-1"]
    assert all(ref.uid for ref in plan.delete)

    fresh = [PODS[0], pod("new-0", names.WORKER, age=0), pod("new-1", names.WORKER, age=-5)]  # age in whole seconds
    done = plan_for(cluster=ray_cluster(), pods=fresh, **recovering("replace_pods"))
    assert done.delete == ()
    assert done.status is not None
    assert done.status.attempt == 2


@pytest.mark.parametrize("ahead", [-60.0, 0.0, 60.0])
def test_replaced_pods_are_the_same_ones_whatever_the_operator_s_clock_says(ahead):
    """ahead: seconds by which it is ahead of the API server's, which says when pods were made."""
    twice = RecoveryStatus(charged=2, cures={"driver": 2})
    old = [*PODS[:2], pod("worker-1", names.WORKER, age=5)]
    fresh = pod("worker-2", names.WORKER, "Pending", age=1)  # KubeRay has missed a pod before us
    given = ended(75, "RankLost", recovery=twice) | {"cluster": ray_cluster(1)}
    failed = plan_for(**given | {"pods": [*old, fresh], "seconds": ahead}).status
    assert failed is not None
    assert failed.recovery.action == "replace_pods"

    told = replace(job(), status=failed)
    first = decide(snapshot(told, cluster=ray_cluster(1), pods=[*old, fresh], seconds=ahead + 1), SETTINGS)
    assert [each.name for each in first.delete] == ["worker-0", "worker-1"]
    new = [PODS[0], fresh, pod("worker-3", names.WORKER, age=-2)]
    after = decide(snapshot(told, cluster=ray_cluster(), pods=new, seconds=ahead + 5), SETTINGS)
    assert after.delete == ()


def test_a_pod_that_is_lost_with_its_node_is_not_waited_for():
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    lost = pod("worker-1", names.WORKER, conditions=[evicted])
    lost["metadata"]["deletionTimestamp"] = stamp(NOW - timedelta(seconds=1))
    fresh = [PODS[0], pod("new-0", names.WORKER, age=0), pod("new-1", names.WORKER, age=-5), lost]
    done = plan_for(cluster=ray_cluster(), pods=fresh, **recovering("replace_pods"))
    assert done.status is not None
    assert done.status.attempt == 2


def test_a_head_that_is_lost_while_pods_are_replaced_means_another_cluster():
    plan = plan_for(cluster=ray_cluster(-1), pods=PODS[1:], **recovering("restart_driver"))

    assert plan.status is not None
    assert plan.status.recovery.action == "rebuild_cluster"
