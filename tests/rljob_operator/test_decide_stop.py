"""What is decided when a job is suspended, resumed, or stopped by a deadline or a change: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta

import pytest

from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator.head import RayJobState
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


def test_a_job_that_is_resumed_while_its_cluster_goes_has_lost_nothing():
    driver = attempted("Submitted")["driver"].model_copy(update={"stop_requested": NOW})
    plan = plan_for(**living(cluster=None, pods=[], head=None, driver=driver))

    assert plan.status is not None
    assert plan.status.restarts == 0
    assert conditions(plan.status)["Ready"] == ("False", "StoppedOnRequest")


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


def test_a_cluster_whose_driver_did_not_stop_in_time_goes_whoever_resumes_the_job_then():
    """Its deletion may be under way, and nobody may have told us."""
    driver = attempted("Submitted")["driver"].model_copy(update={"stop_requested": NOW})
    late = plan_for(**living(driver=driver, phase="Suspending", seconds=121))
    assert (late.delete, phase(late)) == ((CLUSTER,), "Suspending")
    assert conditions(late.status)["Ready"] == ("False", "SpecChanged")

    gone = plan_for(**living(cluster=None, pods=[], head=None, driver=driver, seconds=122))
    assert (phase(gone), gone.restart, conditions(gone.status)["Ready"][1]) == ("Recovering", None, "StoppedOnRequest")


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


def test_suspending_asks_for_a_checkpoint_waits_and_gives_everything_back():
    base = job(suspend=True)

    asked = plan_for(base=base, **living())
    assert (asked.stop, asked.again_in) == (False, 0.0), "the status says so first: the grace period begins"
    assert asked.delete == ()
    assert phase(asked) == "Suspending"
    assert asked.status is not None
    assert asked.status.driver is not None
    assert asked.status.driver.stop_requested == NOW

    told = asked.status.driver
    saving = plan_for(base=base, **living(driver=told, seconds=60))
    assert (saving.stop, saving.delete, phase(saving)) == (True, (), "Suspending")

    stopped = plan_for(base=base, **ended(76, "StoppedOnRequest", driver=told, seconds=60))
    assert stopped.delete == (CLUSTER,)

    late = plan_for(base=base, **living(driver=told, seconds=121))
    assert late.delete == (CLUSTER,), "recovery.evictionGracePeriod has passed"

    done = plan_for(base=base, **attempted("Submitted", driver=told))
    assert phase(done) == "Suspended"
    assert conditions(done.status)["Suspended"] == ("True", "Suspended")
    assert done.status is not None
    assert done.status.restarts == 0


def test_a_cluster_of_an_older_spec_is_given_back_before_the_job_goes_on():
    older = ray_cluster(made_for=NODES)

    asked = plan_for(**living(cluster=older))
    assert phase(asked) == "Suspending"
    assert asked.status is not None
    told = asked.status.driver
    stopped = ExitRecord(code=76, reason="StoppedOnRequest", message="saved")
    back = plan_for(**living(cluster=older, driver=told, head=reports(RayJobState.FAILED, exit=stopped)))
    assert back.delete == (CLUSTER,)
    again = plan_for(**living(cluster=None, pods=[], head=None, driver=told))
    assert (phase(again), again.status and again.status.restarts) == ("Recovering", 0)


def test_a_cluster_of_this_very_generation_is_none_of_an_older_spec():
    """A newer version may have another default, and read the same spec as another one."""
    older = ray_cluster(made_for=NODES)
    older["metadata"]["annotations"]["rljob.dev/generation"] = f"{job().generation}"
    assert phase(plan_for(**living(cluster=older))) == "Running"
    older["metadata"]["annotations"]["rljob.dev/generation"] = f"{job().generation - 1}"
    assert phase(plan_for(**living(cluster=older))) == "Suspending"


def test_a_cluster_of_another_key_is_given_back_before_the_job_goes_on_and_that_is_free():
    older = ray_cluster(key=b"old")

    said = plan_for(**living(cluster=older, head=None))
    assert (said.stop, said.delete, phase(said)) == (False, (), "Suspending")
    assert said.status is not None
    told = said.status.driver
    assert plan_for(**living(cluster=older, head=None, driver=told)).delete == (CLUSTER,)
    again = plan_for(**living(cluster=None, head=None, driver=told))
    assert (phase(again), again.status and again.status.restarts) == ("Recovering", 0)
    assert plan_for(cluster=older, **attempted("Ended")).delete == (CLUSTER,)


def test_what_may_change_while_a_job_runs_leaves_its_cluster_alone():
    now = job(training={"steps": 200, "loggers": ["console"]}, checkpoint={"everySteps": 7}, ttlAfterFinished="1h")

    assert phase(plan_for(base=now, **living(cluster=ray_cluster(made_for=job().spec)))) == "Running"


def test_a_job_that_finishes_while_it_is_being_suspended_has_succeeded():
    assert phase(plan_for(base=job(suspend=True), **ended(0, "Completed"))) == "Succeeded"


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


def test_a_job_that_is_born_suspended_makes_nothing_but_a_status():
    plan = plan_for(base=job(suspend=True))

    assert (plan.create, plan.apply, phase(plan)) == ((), (), "Suspended")


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


def test_a_resumed_job_starts_again():
    plan = plan_for(**attempted("Ended", phase="Suspended"))

    assert phase(plan) == "Starting"
    assert [each["kind"] for each in plan.create] == ["Secret", "RayCluster"]


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


def test_a_deadline_means_nothing_to_a_job_that_is_over():
    over = attempted("Ended", phase="Succeeded", start_time=NOW, completion_time=NOW)

    assert plan_for(base=job(activeDeadline="10m", ttlAfterFinished="1h"), **over).again_in == 3600.0


def test_a_deadline_stops_with_a_checkpoint_and_fails():
    base, started = job(activeDeadline="1h"), NOW - timedelta(hours=1)

    assert phase(plan_for(base=base, **living(start_time=started + timedelta(seconds=1)))) == "Running"
    asked = plan_for(base=base, **living(start_time=started))
    assert phase(asked) == "Suspending"
    done = plan_for(base=base, **attempted("Submitted", start_time=started))
    assert conditions(done.status)["Failed"] == ("True", "DeadlineExceeded")
