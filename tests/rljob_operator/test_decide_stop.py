"""What is decided when a job is suspended, resumed, or stopped by a deadline or a change: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rljob_api.v1alpha1 import RecoveryStatus
from tests.rljob_operator.decisions import CLUSTER, decide, ended, living, phase, plan_for
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    attempted,
    conditions,
    job,
    ray_cluster,
    reports,
    snapshot,
)

NODES = job(cluster={"nodes": 3, "gpusPerNode": 4}).spec


def test_a_driver_that_runs_on_after_a_resume_is_not_asked_to_stop_any_more():
    asked = plan_for(base=job(suspend=True), **living()).status
    assert asked is not None
    on = decide(snapshot(replace(job(), status=asked), cluster=ray_cluster(), pods=PODS, head=reports()), SETTINGS)
    assert phase(on) == "Running"
    assert on.status is not None
    assert on.status.driver is not None
    assert on.status.driver.stop_requested is None

    lost = plan_for(**living(cluster=None, pods=[], head=None, driver=on.status.driver))
    assert conditions(lost.status)["Ready"] == ("False", "RayLost")
    late = plan_for(base=job(suspend=True), **living(driver=on.status.driver, seconds=7200))
    assert (late.delete, late.status and late.status.driver and late.status.driver.stop_requested) == (
        (), NOW + timedelta(hours=2),
    )  # fmt: skip


@pytest.mark.parametrize("base", [job(suspend=True), job(activeDeadline="1s")])
def test_a_driver_whose_head_is_lost_is_not_asked_for_a_checkpoint(base):
    headless = living(base=base, cluster=ray_cluster(-1), pods=PODS[1:], head=None, start_time=NOW, seconds=60)
    over = plan_for(**headless)
    assert over.status is not None
    assert over.status.driver is not None
    assert (over.status.driver.state, over.status.driver.stop_requested) == ("Ended", None)
    goes = decide(
        snapshot(replace(base, status=over.status), cluster=ray_cluster(-1), pods=PODS[1:], seconds=60), SETTINGS
    )
    assert (goes.stop, goes.delete) == (False, (CLUSTER,))


def test_a_cluster_of_this_very_generation_is_none_of_an_older_spec():
    """A newer version may have another default, and read the same spec as another one."""
    older = ray_cluster(made_for=NODES)
    older["metadata"]["annotations"]["rljob.dev/generation"] = f"{job().generation}"
    assert phase(plan_for(**living(cluster=older))) == "Running"
    older["metadata"]["annotations"]["rljob.dev/generation"] = f"{job().generation - 1}"
    assert phase(plan_for(**living(cluster=older))) == "Suspending"


def test_what_may_change_while_a_job_runs_leaves_its_cluster_alone():
    now = job(training={"steps": 200, "loggers": ["console"]}, checkpoint={"everySteps": 7}, ttlAfterFinished="1h")

    assert phase(plan_for(base=now, **living(cluster=ray_cluster(made_for=job().spec)))) == "Running"


@pytest.mark.parametrize("began_with", [None, 99])
def test_a_run_with_a_length_in_epochs_has_ended_with_its_driver(began_with):
    driver = attempted("Submitted")["driver"].model_copy(update={"steps": began_with})
    base = job(training={"steps": None, "epochs": 2})
    assert base.spec.training.steps is None
    assert phase(plan_for(base=base, **ended(0, "Completed", driver=driver))) == "Succeeded"


@pytest.mark.parametrize(("suspend", "then"), [(False, "Recovering"), (True, "Suspending")])
def test_a_driver_that_ends_before_the_steps_that_are_wanted_by_now_is_followed_by_another(suspend, then):
    began_with = attempted("Submitted")["driver"].model_copy(update={"steps": 99})
    base = job(suspend=suspend)
    plan = plan_for(base=base, **ended(0, "Completed", driver=began_with))
    assert (phase(plan), plan.restart) == ("Recovering", None)
    assert conditions(plan.status)["Ready"] == ("False", "MoreSteps")
    assert plan.status is not None

    after = decide(snapshot(replace(base, status=plan.status), cluster=ray_cluster(), pods=PODS), SETTINGS)
    assert phase(after) == then
    assert after.status is not None
    assert after.status.driver is not None
    assert (after.status.attempt, after.status.driver.steps) == ((1, 99) if suspend else (2, 100))


def test_suspending_renews_the_budget():
    plan = plan_for(base=job(suspend=True), **attempted("Ended", recovery=RecoveryStatus(charged=5)))

    assert phase(plan) == "Suspended"
    assert plan.status is not None
    assert plan.status.recovery == RecoveryStatus()


def test_a_deadline_does_not_count_what_came_before_a_suspension():
    base, started = job(activeDeadline="1h", suspend=True), NOW - timedelta(hours=2)

    suspended = plan_for(base=base, **attempted("Ended", start_time=started)).status
    assert suspended is not None
    assert (suspended.phase, suspended.start_time) == ("Suspended", None)
    resumed = replace(job(activeDeadline="1h"), status=suspended)
    assert phase(decide(snapshot(resumed), SETTINGS)) == "Starting"


WAITS = [
    ("a restart's backoff", {"cluster": ray_cluster(), "pods": PODS}, SETTINGS),
    ("its pods", {"cluster": ray_cluster(1), "pods": PODS[:2]}, SETTINGS),
    ("an image", {}, SETTINGS.model_copy(update={"trainer_image": None})),
]


@pytest.mark.parametrize(("given", "settings"), [row[1:] for row in WAITS], ids=[row[0] for row in WAITS])
def test_a_deadline_passes_whatever_the_job_waits_for(given, settings):
    waits = RecoveryStatus(charged=1, action="restart_driver", decided=NOW, not_before=NOW + timedelta(hours=2))
    begun = attempted("Ended", phase="Recovering", start_time=NOW - timedelta(minutes=5), recovery=waits)
    seen = snapshot(base=job(activeDeadline="10m"), **given, **begun)

    assert decide(seen, settings).again_in == 300.0
    later = decide(replace(seen, now=seen.now + timedelta(minutes=5)), settings)
    assert conditions(later.status)["Ready"][1] == "DeadlineExceeded"
    assert later.again_in != 0.0 or later.status is not None, "it does not go round and round"
