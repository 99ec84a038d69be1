"""What is decided on the way up, from a new job to one that runs: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.v1alpha1 import CheckpointStatus, Progress
from rljob_operator import names
from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.kube.kinds import RAY_CLUSTER
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import SECRET_SECONDS
from tests.rljob_operator.decisions import decide, living, plan_for
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    NOW,
    PODS,
    REWARDS,
    SETTINGS,
    attempted,
    conditions,
    job,
    pod,
    ray_cluster,
    reports,
    snapshot,
    stamp,
)


@pytest.mark.parametrize(("rewards", "gpus"), [(None, 8), (REWARDS, 11)])
def test_a_job_says_how_many_gpus_it_asks_for(rewards, gpus):
    plan = plan_for(base=job(**({} if rewards is None else {"rewards": rewards})))

    assert plan.status is not None
    assert plan.status.gpus == gpus


def test_an_attempt_is_reserved_in_the_status_before_anything_is_submitted():
    plan = plan_for(cluster=ray_cluster(), pods=PODS)

    assert plan.submit is None
    assert plan.status is not None
    assert plan.status.attempt == 1
    assert plan.status.driver is not None
    assert (plan.status.driver.state, plan.status.driver.cluster_uid) == ("Reserved", CLUSTER_UID)
    assert plan.status.driver.generation == 3
    assert plan.again_in == 0.0


def test_a_checkpoint_is_available_until_the_agent_says_that_there_is_none():
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    known = plan_for(**living(head=reports(checkpoint=saved))).status
    assert known is not None
    for head, told in ((reports(), ("True", "Saved")), (reports(empty=True), ("False", "Lost"))):
        status = known
        for _ in range(2):
            seen = snapshot(replace(job(), status=status), cluster=ray_cluster(), pods=PODS, head=head)
            status = decide(seen, SETTINGS).status or status
            assert conditions(status)["CheckpointAvailable"] == told
            assert (status.checkpoint is None) == (told[1] == "Lost")


def test_nothing_new_gives_nothing_to_write():
    first = living()
    told = decide(snapshot(**first), SETTINGS).status
    assert told is not None
    base = replace(job(), status=told)
    plan = decide(Snapshot(base, NOW + timedelta(seconds=60), *_rest(snapshot(**first))), SETTINGS)

    assert (plan.status, plan.events, plan.create, plan.delete, plan.submit) == (None, (), (), (), None)


LOOKS: list[tuple[str, Any, float | None, bool, float]] = [
    ("nobody has told anything yet", {}, None, True, 5.0),
    ("just told", {}, 0.0, False, 5.0),
    ("told a little ago", {}, 12.0, False, 3.0),
    ("told long ago", {}, 15.0, True, 5.0),
    ("our clock was set back", {}, -60.0, True, 5.0),
    ("a new checkpoint", {"checkpoint": CheckpointStatus(step=20, path="p", time=NOW)}, 0.0, True, 5.0),
]


@pytest.mark.parametrize(("report", "ago", "told", "again_in"), [row[1:] for row in LOOKS], ids=[r[0] for r in LOOKS])
def test_progress_waits_a_little_and_a_checkpoint_takes_it_along(report, ago, told, again_in):
    first = snapshot(**living())
    status = decide(first, SETTINGS).status
    assert status is not None
    running = replace(job(), status=status)
    head = reports(progress=Progress(step=25, total_steps=100), **report)
    last = None if ago is None else NOW - timedelta(seconds=ago)
    plan = decide(Snapshot(running, NOW, first.children, first.pods, head, last), SETTINGS)

    assert ((plan.status and plan.status.progress) == head.progress) == told
    assert plan.again_in == again_in


def test_a_job_that_waits_for_pods_is_left_alone_until_there_is_news_unless_time_matters():
    started = {"start_time": NOW, "cluster": ray_cluster(1, provisioned=False)}
    ending = pod("old", names.WORKER)
    ending["metadata"]["deletionTimestamp"] = stamp(NOW)

    assert plan_for(**started).again_in is None
    assert plan_for(**started, pods=[ending]).again_in == WAIT_SECONDS


def test_a_driver_whose_job_is_not_written_anew_is_not_asked_to_wait_for_it():
    """The spec has a field that only a newer operator knows, so its ConfigMap stays as it is."""
    seen = snapshot(base=replace(job(), unread="spec.new: not known"), **living(driver=None))
    plan = decide(seen, SETTINGS)
    assert (plan.apply, plan.status and plan.status.attempt) == ((), 2)
    assert plan.status is not None
    assert plan.status.driver is not None
    assert plan.status.driver.generation is None


def test_pods_that_have_a_node_and_do_not_start_may_lack_the_secret_that_nobody_may_read():
    placed, unplaced = pod("w", names.WORKER, "Pending", node="n1"), pod("w", names.WORKER, "Pending")
    for pods, kind in (([*PODS[:2], placed], "Secret"), ([*PODS[:2], unplaced], None), (PODS[:2], None)):
        plan = plan_for(cluster=ray_cluster(1), pods=pods)
        assert (plan.secret and plan.secret["kind"]) == kind
        assert plan.again_in == (SECRET_SECONDS if kind else None)
        assert plan.written is not None, "it takes nothing from what is said"


def test_a_pod_more_is_told_with_the_next_transition():
    waiting = decide(snapshot(cluster=ray_cluster(0, provisioned=False)), SETTINGS).status
    assert waiting is not None
    base = replace(job(), status=waiting)
    assert plan_for(base=base, cluster=ray_cluster(1, provisioned=False), written=NOW).status is None

    plan = plan_for(base=base, cluster=ray_cluster(), pods=PODS, written=NOW)
    assert plan.status is not None
    assert plan.status.attempt == 1
    assert plan.status.cluster is not None
    assert plan.status.cluster.ready_workers == 2


def _rest(of: Snapshot) -> tuple[Any, ...]:
    return of.children, of.pods, of.head


def test_a_checkpoint_that_went_with_the_cluster_is_told_before_there_is_another_volume():
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    seen = replace(snapshot(checkpoint=saved, **attempted("Ended", phase="Recovering")), children={})
    made = decide(seen, SETTINGS)
    assert [each["kind"] for each in made.create] == ["Secret", "RayCluster"]
    assert "PersistentVolumeClaim" not in {each["kind"] for each in made.apply}, "which would hide the loss"
    told = decide(replace(seen, children={RAY_CLUSTER: {"job": ray_cluster(0, provisioned=False)}}), SETTINGS)
    assert "CheckpointLost" in {event.reason for event in told.events}
    assert told.written is not None
    after = decide(replace(seen, job=replace(seen.job, status=told.written)), SETTINGS)
    assert "PersistentVolumeClaim" in {each["kind"] for each in after.apply}
