"""What is decided when a driver, a pod or a cluster fails: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.v1alpha1 import CheckpointStatus, Condition, RecoveryStatus, RLJobStatus
from rljob_operator import names
from rljob_operator.head import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.kube.errors import Forbidden
from rljob_operator.kube.kinds import Manifest, Ref
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import (
    CLUSTER,
    broken,
    decide,
    ended,
    forgotten,
    leaving_head,
    living,
    phase,
    plan_for,
    recovering,
    refused,
    restarted,
)
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    NOW,
    PODS,
    SETTINGS,
    conditions,
    job,
    pod,
    ray_cluster,
    reports,
    snapshot,
    stamp,
)

FULL = """Job entrypoint command failed with exit code 79, last available logs (truncated to 20,000 chars):
{"event": "workers_taken_over", "level": "info"}
{"event": "attempt_ended", "code": 79, "message": "no space left for the checkpoint of step 4: free space"}
"""
"""What Ray says of such a driver."""

ENDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("done", ended(0, "Completed"), "Succeeded", "Completed"),
    ("done without a record", living(head=HeadReport(RayJob(RayJobState.SUCCEEDED))), "Succeeded", "Completed"),
    ("a wrong job", ended(64, "JobError"), "Failed", "JobError"),
    ("wrong data", ended(65, "DataError"), "Failed", "DataError"),
    ("wrong reward code", ended(66, "RewardError", field="spec.rewards.functions[0]"), "Failed", "RewardError"),
    ("a lost rank", ended(75, "RankLost"), "Recovering", "RankLost"),
    ("no usable checkpoint", ended(78, "NoUsableCheckpoint"), "Failed", "NoUsableCheckpoint"),
    ("stopped by an eviction", ended(76, "StoppedOnRequest"), "Recovering", "StoppedOnRequest"),
    ("fenced", ended(77, "Fenced"), "Failed", "Fenced"),
    (
        "killed without a record",
        living(head=HeadReport(RayJob(RayJobState.FAILED, "killed", driver_exit_code=137))),
        "Recovering",
        "DriverLost",
    ),
    (
        "a full volume without a record",
        living(head=HeadReport(RayJob(RayJobState.FAILED, FULL, driver_exit_code=79))),
        "Failed",
        "StorageFull",
    ),
    ("Ray forgot it", living(head=HeadReport(None)), "Recovering", "RayLost"),
    ("Ray forgot one that is done", forgotten(0, "Completed"), "Succeeded", "Completed"),
    ("Ray forgot one that is wrong", forgotten(66, "RewardError"), "Failed", "RewardError"),
    ("Ray forgot one that failed", forgotten(75, "RankLost"), "Recovering", "RankLost"),
    ("its cluster is gone", living(cluster=None, pods=[], head=None), "Recovering", "RayLost"),
    ("its cluster is another", living(cluster=ray_cluster(uid="cc-2"), head=None), "Recovering", "RayLost"),
    ("its head pod is gone", living(cluster=ray_cluster(-1), pods=PODS[1:], head=None), "Recovering", "RayLost"),
    (
        "its head pod failed",
        living(cluster=ray_cluster(-1), pods=[pod("head", names.HEAD, "Failed"), *PODS[1:]], head=None),
        "Recovering",
        "RayLost",
    ),
]  # fmt: skip


def test_a_driver_that_could_not_write_its_record_has_said_it_in_its_log():
    plan = plan_for(**living(head=HeadReport(RayJob(RayJobState.FAILED, FULL, driver_exit_code=79))))
    assert plan.status is not None
    (ready,) = [each for each in plan.status.conditions if each.type == "Ready"]
    assert ready.message.endswith("left no record: no space left for the checkpoint of step 4: free space")


def test_a_log_that_ends_in_what_is_nested_without_end_is_quoted_as_it_is():
    nested = "error: a\n" + "[" * 100_000
    plan = plan_for(**living(head=HeadReport(RayJob(RayJobState.FAILED, nested, driver_exit_code=79))))
    assert plan.status is not None
    (ready,) = [each for each in plan.status.conditions if each.type == "Ready"]
    assert (ready.reason, ready.message[-9:]) == ("StorageFull", "[" * 9)


TAKEN = """Job entrypoint command failed with exit code 77, last available logs (truncated to 20,000 chars):
error: attempt 1 is taken: the driver that started at 2026-11-22 runs or ran it. A new job needs a volume
"""


def test_a_driver_that_met_another_run_is_shown_with_its_own_words():
    plan = plan_for(**living(head=HeadReport(RayJob(RayJobState.FAILED, TAKEN, driver_exit_code=77))))
    assert plan.status is not None
    (ready,) = [each for each in plan.status.conditions if each.type == "Ready"]
    assert (phase(plan), ready.reason) == ("Failed", "Fenced")
    assert "record: attempt 1 is taken: the driver that started at 2026-11-22 runs or ran it" in ready.message
    assert "delete the claim first" in ready.message


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({}, "PersistentVolumeClaim job-checkpoints, which has files of another run"),
        ({"existingClaim": "shared"}, "PersistentVolumeClaim shared, which"),
        ({"existingClaim": "shared", "subPath": "a/b"}, "PersistentVolumeClaim shared, subPath a/b, which"),
    ],
)
def test_a_driver_that_meets_another_run_names_the_volume_and_the_way_out(volume, expected):
    plan = plan_for(**ended(77, "Fenced", base=job(checkpoint={"volume": volume})))
    assert plan.status is not None
    message = next(each.message for each in plan.status.conditions if each.type == "Failed")
    assert message.startswith(f"another attempt took over {expected}")
    assert "another existingClaim or subPath in spec.checkpoint.volume" in message


def test_a_head_pod_that_no_watch_has_told_of_is_not_lost_while_kuberay_sees_it():
    plan = plan_for(cluster=ray_cluster(), pods=[])

    assert (phase(plan), plan.restart) == ("Starting", None)


@pytest.mark.parametrize(("given", "phase_", "reason"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_how_an_attempt_ends(given, phase_, reason):
    plan = plan_for(**given)

    assert phase(plan) == phase_
    assert plan.status is not None
    assert conditions(plan.status)["Ready"][1] == reason
    assert plan.status.driver is not None
    assert plan.status.driver.state == "Ended"
    assert (plan.status.completion_time == NOW) == (phase_ in ("Succeeded", "Failed"))
    assert conditions(plan.status)["Stalled"][0] == str(phase_ == "Failed")


RESTARTS: list[tuple[float | None, float | None, HeadReport | None, str]] = [
    (400.0, None, None, "ClusterNotReady"),  # before all pods were there
    (200.0, None, None, "RayLost"),
    (None, None, None, "RayLost"),
    (200.0, 100.0, None, "ClusterNotReady"),  # before the attempt: it starts where all pods are ready again
    (50.0, 100.0, None, "RayLost"),
    (200.0, None, reports(), "ClusterNotReady"),  # Ray forgets with its container, and knows this driver
]


@pytest.mark.parametrize(("ago", "reserved", "head", "reason"), RESTARTS)
def test_a_head_that_restarted_before_its_attempt_is_no_lost_one_when_a_worker_goes(ago, reserved, head, reason):
    """reserved: seconds since the attempt got its number; None where an older operator has not said so."""
    given = living(cluster=ray_cluster(1), pods=restarted(ago), head=head)
    when = None if reserved is None else NOW - timedelta(seconds=reserved)
    plan = plan_for(**given | {"driver": given["driver"].model_copy(update={"reserved": when})})
    assert plan.status is not None
    assert conditions(plan.status)["Ready"] == ("False", reason)


def test_what_a_driver_that_ray_forgot_said_is_cured_by_another_cluster_alone():
    plan = plan_for(**forgotten(75, "RankLost"))
    assert plan.status is not None
    assert (plan.status.recovery.action, plan.restart) == ("rebuild_cluster", "RankLost")


FAILED_UNREAD = HeadReport(RayJob(RayJobState.FAILED, "killed", driver_exit_code=66), agent=False)


@pytest.mark.parametrize(
    ("silent", "head", "phase_", "reason"),
    [
        (10.0, FAILED_UNREAD, "Recovering", "DriverNotHeard"),
        (61.0, FAILED_UNREAD, "Failed", "Reward"),
        (10.0, replace(FAILED_UNREAD, agent=True), "Failed", "Reward"),
        (10.0, HeadReport(RayJob(RayJobState.SUCCEEDED), agent=False), "Succeeded", "Completed"),
    ],
)
def test_a_driver_s_record_is_waited_for_while_its_agent_does_not_answer_but_not_for_long(silent, head, phase_, reason):
    plan = plan_for(**living(head=head), silent=silent)
    assert phase(plan) == phase_
    assert conditions(plan.status)["Ready"][1] == reason
    assert plan.status is not None
    assert plan.status.driver is not None
    assert (plan.status.driver.state == "Submitted") == (reason == "DriverNotHeard")


@pytest.mark.parametrize(
    ("seconds", "evicted_by", "allowed", "forced"),
    [
        (0.0, "DeletionByTaintManager", True, False),
        (1.0, "DeletionByTaintManager", True, True),
        (1.0, "DeletionByTaintManager", False, False),
        (1.0, "EvictionByEvictionAPI", True, False),
    ],
)
def test_pods_lost_with_their_node_are_named_and_deleted_where_the_user_allows_it(
    seconds, evicted_by, allowed, forced
):  # fmt: skip
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": evicted_by}]
    lost = pod("worker-0", names.WORKER, conditions=disrupted, node="n1")
    lost["metadata"]["deletionTimestamp"] = stamp(NOW)
    plan = plan_for(
        base=job(recovery={"forceDeleteLostPods": allowed}), pods=[lost], phase="Recovering", seconds=seconds
    )

    assert plan.force == ((Ref.of(lost),) if forced else ())
    waits = seconds == 0 and evicted_by == "DeletionByTaintManager"
    assert (plan.again_in == 1.0) == waits, "nobody tells that it is lost now"
    assert plan.status is not None
    (ready,) = (each for each in plan.status.conditions if each.type == "Ready")
    named = seconds > 0 and evicted_by == "DeletionByTaintManager"
    assert ("worker-0 on node n1: lost with its node" in ready.message) == named


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


def test_a_terminal_failure_names_the_field_in_the_driver_s_own_words():
    plan = plan_for(**ended(66, "RewardError", "compute_score raised KeyError", "spec.rewards.functions[0].source"))

    assert plan.status is not None
    message = next(each.message for each in plan.status.conditions if each.type == "Failed")
    assert message.startswith("spec.rewards.functions[0].source: ")
    assert "compute_score raised KeyError" in message


def test_a_message_is_never_longer_than_a_condition_holds():
    plan = plan_for(**ended(66, "RewardError", "x" * 32_768, "spec.rewards.functions[0].source"))

    assert phase(plan) == "Failed"
    assert plan.status is not None
    assert max(len(each.message) for each in plan.status.conditions) == 32_768


def test_the_budget_ends_and_a_new_checkpoint_renews_it():
    spent = RecoveryStatus(durable_step=10, charged=5, cures={"driver": 2, "pods": 2, "cluster": 1})
    saved = CheckpointStatus(step=20, path="p", time=NOW)

    over = plan_for(**ended(75, "RankLost", recovery=spent))
    assert (phase(over), conditions(over.status)["Failed"]) == ("Failed", ("True", "RestartsExhausted"))

    given = ended(75, "RankLost", recovery=spent, restarts=5)
    given["head"] = replace(given["head"], checkpoint=saved)
    again = plan_for(**given)
    assert phase(again) == "Recovering"
    assert again.status is not None
    assert (again.status.recovery.charged, again.status.recovery.durable_step, again.status.restarts) == (1, 20, 6)


FREE = job(recovery={"rules": [{"onReasons": ["RankLost"], "action": "restart_uncharged"}]})

CHARGED = [
    (ended(75, "RankLost"), "RankLost"),
    (ended(75, "WhateverItLikes"), "other"),
    (ended(75, "Backoff"), "other"),
    (ended(75, "RankLost", base=FREE), None),
    (ended(76, "StoppedOnRequest"), None),
    (living(), None),
]


@pytest.mark.parametrize(("given", "counted"), CHARGED)
def test_restarts_that_are_charged_are_counted_by_reasons_of_the_table(given, counted):
    assert plan_for(**given).restart == counted


LADDER = [(0, "restart_driver"), (2, "replace_pods"), (4, "rebuild_cluster")]


@pytest.mark.parametrize(("before", "action"), LADDER)
def test_the_ladder_is_climbed_while_nothing_helps(before, action):
    levels = ["driver", "driver", "pods", "pods"][:before]
    recovery = RecoveryStatus(charged=before, cures={level: levels.count(level) for level in levels})
    plan = plan_for(**ended(75, "RankLost", recovery=recovery))

    assert plan.status is not None
    assert plan.status.recovery.action == action
    assert plan.status.recovery.cluster_uid == CLUSTER_UID


def test_a_driver_restarts_on_the_living_cluster_after_its_wait():
    waiting = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("restart_driver", wait=4.0))
    assert (waiting.again_in, waiting.delete, waiting.create) == (4.0, (), ())

    plan = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("restart_driver"))
    assert plan.status is not None
    assert plan.status.attempt == 2
    assert plan.status.recovery.action is None
    assert plan.status.recovery.charged == 1
    assert (plan.delete, plan.create) == ((), ())


SLOW = job(recovery={"backoff": {"initial": "90s", "factor": 1, "max": "2m"}})
RANK = "driver ended with code 75 (RankLost): rank-3 died"
WAITING = f"next attempt not before {stamp(NOW + timedelta(seconds=90))}: {RANK}"


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


def test_a_rebuilt_cluster_is_deleted_by_uid_waited_for_and_made_again():
    gone = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("rebuild_cluster"))
    assert (gone.delete, gone.create) == ((CLUSTER,), ())

    waiting = plan_for(cluster=ray_cluster(deleting=True), pods=PODS, **recovering("rebuild_cluster"))
    assert (waiting.delete, waiting.create) == ((), ())

    made = plan_for(**recovering("rebuild_cluster"))
    assert [each["kind"] for each in made.create] == ["Secret", "RayCluster"]

    new = ray_cluster(uid="cc-2")
    started = plan_for(cluster=new, pods=PODS, **recovering("rebuild_cluster"))
    assert started.delete == ()
    assert started.status is not None
    assert started.status.driver is not None
    assert (started.status.attempt, started.status.driver.cluster_uid) == (2, "cc-2")


def test_a_head_that_is_lost_while_pods_are_replaced_means_another_cluster():
    plan = plan_for(cluster=ray_cluster(-1), pods=PODS[1:], **recovering("restart_driver"))

    assert plan.status is not None
    assert plan.status.recovery.action == "rebuild_cluster"


def test_a_new_cluster_waits_for_the_pods_of_the_old_one_which_kuberay_would_adopt():
    plan = plan_for(pods=PODS, **recovering("rebuild_cluster"))

    assert plan.create == ()
    assert conditions(plan.status)["Ready"] == ("False", "ClusterDeleting")
