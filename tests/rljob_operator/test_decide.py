"""What is decided, beyond `golden_messages.txt`: what must never happen, and what that file does not show."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.v1alpha1 import CheckpointStatus, Progress
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import read_job
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Unavailable
from rljob_operator.kube.kinds import RAY_CLUSTER
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import decide, deleted, ended, living, phase, plan_for, refused
from tests.rljob_operator.golden import FILE, render
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    REWARDS,
    SETTINGS,
    attempted,
    conditions,
    job,
    manifest,
    ray_cluster,
    reports,
    snapshot,
)


def test_every_situation_says_and_does_what_the_golden_file_has():
    """If a change is meant: python -m tests.rljob_operator.golden"""
    assert render() == FILE.read_text()


@pytest.mark.parametrize("given", [{}, {"base": job(suspend=True)}, {"base": job(rewards=REWARDS)}])
def test_nothing_new_gives_nothing_to_write(given):
    first = snapshot(**living(**given))
    status = decide(first).status
    assert status is not None
    later = replace(first, job=replace(first.job, status=status), now=NOW + timedelta(seconds=60))
    plan = decide(later)
    assert (plan.status, plan.events, plan.create, plan.delete, plan.submit) == (None, (), (), (), None)


def test_an_attempt_is_in_the_status_before_anything_is_submitted():
    plan = plan_for(cluster=ray_cluster(), pods=PODS)
    assert plan.submit is None
    assert plan.written is not None
    assert plan.written.driver is not None
    assert (plan.written.attempt, plan.written.driver.state) == (1, "Reserved")
    assert plan.written.driver.submission_id == names.submission(job().uid, 1)


def test_an_engine_that_differs_is_one_event():
    differs = Progress(step=3, engine_difference=0.5, engine_tolerance=0.001)
    plans = [plan_for(**living(head=reports(progress=differs)))]
    assert plans[0].written is not None
    seen = snapshot(**living(head=reports(progress=differs.model_copy(update={"step": 4}))))
    plans.append(decide(replace(seen, job=replace(seen.job, status=plans[0].written))))
    named = [[(each.reason, each.warning) for each in plan.events if "Engine" in each.reason] for plan in plans]
    assert named == [[("EngineDiffers", True)], []]


def test_a_checkpoint_that_went_with_its_volume_is_reported_before_there_is_another_volume():
    saved = CheckpointStatus(step=20, path="p", time=NOW)
    seen = replace(snapshot(checkpoint=saved, **attempted("Ended", phase="Recovering")), children={})
    made = decide(seen)
    assert [each["kind"] for each in made.create] == ["Secret", "RayCluster"]
    assert "PersistentVolumeClaim" not in {each["kind"] for each in made.apply}, "which would hide the loss"
    reported = decide(replace(seen, children={RAY_CLUSTER: {"job": ray_cluster(0, provisioned=False)}}))
    assert "CheckpointLost" in {event.reason for event in reported.events}
    assert reported.written is not None
    after = decide(replace(seen, job=replace(seen.job, status=reported.written)))
    assert "PersistentVolumeClaim" in {each["kind"] for each in after.apply}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"base": job(suspend=True), **living()}, "Suspending"),
    (ended(75, "RankLost"), "Recovering"),
    ({"base": job(suspend=True), "phase": "Suspending"}, "Suspended"),
]


@pytest.mark.parametrize("error", [Forbidden("quota"), Unavailable("etcd")], ids=["refused", "failed at"])
@pytest.mark.parametrize(("given", "expected"), REFUSED)
def test_what_needs_no_object_is_done_although_one_is_refused(given, expected, error):
    seen = snapshot(**given)
    plan = decide(seen)
    done = refused(seen, plan, error)
    assert (done.status, done.stop, done.end, done.restart) == (plan.status, plan.stop, plan.end, plan.restart)
    assert (phase(done), done.apply, done.create, done.again_in) == (expected, (), (), 0.0)


@pytest.mark.parametrize("given", [{}, living()])
def test_a_refusal_is_reported_once(given):
    seen, taken = snapshot(**given), AlreadyExists("ConfigMap job-job exists")
    first = refused(seen, decide(seen), taken)
    assert [each.reason for each in first.events if each.warning] == ["NameTaken"]
    assert first.status is not None
    again = replace(seen, job=replace(seen.job, status=first.status))
    assert refused(again, decide(again), taken) == Plan()


def test_the_finalizer_goes_with_the_last_pod_and_other_finalizers_are_named_once():
    kept = replace(job(), deleted=NOW, finalizers=("x.y/z", names.FINALIZER))
    assert decide(deleted(pods=PODS)).finalizer is None
    assert decide(snapshot(kept)) == Plan(finalizer=False, again_in=0.0)
    named = decide(snapshot(replace(kept, finalizers=("x.y/z",))))
    assert named.status is not None
    again = decide(snapshot(replace(kept, finalizers=("x.y/z",), status=named.status)))
    assert (again.status, again.events) == (None, ())
    assert decide(snapshot(replace(kept, finalizers=("foregroundDeletion",)))) == Plan(finalizer=False)


def test_a_message_is_never_longer_than_a_condition_holds_whatever_a_driver_writes():
    nested = RayJob(RayJobState.FAILED, "error: a\n" + "[" * 100_000, driver_exit_code=79)
    for given in (ended(66, "Reward", "x" * 32_768, "spec.rewards"), living(head=HeadReport(nested))):
        plan = plan_for(**given)
        assert phase(plan) == "Failed"
        assert plan.status is not None
        assert max(len(each.message) for each in plan.status.conditions) <= 32_768


def test_servers_keep_the_image_that_their_ray_cluster_was_created_with():
    older = ray_cluster()
    older["metadata"]["annotations"][names.IMAGE_ANNOTATION] = "trainer:old"
    given: dict[str, Any] = {"base": job(rewards=REWARDS), "pods": PODS, "head": reports()} | attempted("Submitted")
    for cluster, image in ((older, "trainer:old"), (ray_cluster(), SETTINGS.trainer_image)):
        made = next(each for each in plan_for(cluster=cluster, **given).apply if each["kind"] == "Deployment")
        assert made["spec"]["template"]["spec"]["containers"][0]["image"] == image


def test_a_status_that_a_newer_operator_wrote_is_left_as_it_is():
    read = read_job(manifest({"attempt": 3, "fieldOfTomorrow": 1}))
    assert (read.problem, read.status.attempt) == (None, 3)
    read = read_job(manifest({"attempt": 3, "phase": "Dreaming"}))
    plan = plan_for(base=read, cluster=ray_cluster())
    assert (plan.delete, plan.apply, plan.create, plan.submit) == ((), (), (), None)
    assert plan.status is not None
    assert (plan.status.phase, plan.status.attempt) == (read.status.phase, 3), "neither is written"
    assert conditions(plan.status)["Stalled"] == ("True", "SpecNotReadable")
