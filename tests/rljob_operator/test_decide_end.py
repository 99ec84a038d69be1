"""What is decided when a job is suspended, finishes, is deleted or cannot be worked on: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import RecoveryStatus
from rljob_operator import names, tokens
from rljob_operator.decide import decide, refused
from rljob_operator.head import RayJobState
from rljob_operator.job import Job, read_job
from rljob_operator.kube.errors import Forbidden, Invalid
from rljob_operator.kube.kinds import CONFIG_MAP, NETWORK_POLICY, RAY_CLUSTER, SECRET, Ref
from rljob_operator.plan import Plan
from rljob_operator.snapshot import HeadReport, Snapshot
from tests.rljob_operator.decisions import CLUSTER, ended, living, phase, plan_for
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    UID,
    attempted,
    conditions,
    job,
    manifest,
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


def test_a_resumed_job_starts_again():
    plan = plan_for(**attempted("Ended", phase="Suspended"))

    assert phase(plan) == "Starting"
    assert [each["kind"] for each in plan.create] == ["Secret", "RayCluster"]


def test_a_deadline_stops_with_a_checkpoint_and_fails():
    base, started = job(activeDeadline="1h"), NOW - timedelta(hours=1)

    assert phase(plan_for(base=base, **living(start_time=started + timedelta(seconds=1)))) == "Running"
    asked = plan_for(base=base, **living(start_time=started))
    assert phase(asked) == "Suspending"
    done = plan_for(base=base, **attempted("Submitted", start_time=started))
    assert conditions(done.status)["Failed"] == ("True", "DeadlineExceeded")


def finished(phase_: str, reason: str, hours: float) -> dict[str, Any]:
    told = decide(snapshot(**(ended(0, "Completed") if phase_ == "Succeeded" else ended(64, reason))), SETTINGS).status
    assert told is not None
    return {name: getattr(told, name) for name in type(told).model_fields} | {
        "completion_time": NOW - timedelta(hours=hours)
    }


@pytest.mark.parametrize(("phase_", "reason"), [("Succeeded", "Completed"), ("Failed", "JobError")])
def test_a_finished_job_never_changes_and_gives_back_what_it_holds(phase_, reason):
    base = job(ttlAfterFinished="2h")
    kept = plan_for(base=base, pods=PODS, **finished(phase_, reason, hours=1) | {"cluster": ray_cluster()})
    assert kept.delete == ()
    assert kept.again_in == 3600.0

    over = plan_for(base=base, pods=PODS, **finished(phase_, reason, hours=2) | {"cluster": ray_cluster()})
    assert over.delete == (CLUSTER,)
    for plan in (kept, over):
        assert plan.submit is None
        assert plan.create == ()
        assert plan.status is None or phase(plan) == phase_


def test_pods_that_are_ending_keep_what_protects_them():
    over = finished("Failed", "JobError", hours=2) | {"cluster": None}
    policy = {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "job", "namespace": "team", "uid": "p"},
    }  # fmt: skip
    for pods, gone in ((PODS, ()), ([], (Ref.of(policy),))):
        seen = snapshot(job(), pods=pods, **over)
        assert decide(replace(seen, children={NETWORK_POLICY: {"job": policy}}), SETTINGS).delete == gone


def deleted(**given: Any) -> Snapshot:
    """A job that was deleted at NOW."""
    return snapshot(replace(job(), deleted=NOW), **given)


def test_deletion_takes_the_cluster_away_waits_for_its_pods_and_is_bounded():
    begun = decide(deleted(**living()), SETTINGS)
    assert (begun.delete, begun.finalizer, phase(begun)) == ((CLUSTER,), None, "Deleting")

    waiting = decide(deleted(pods=PODS), SETTINGS)
    assert (waiting.finalizer, waiting.again_in) == (None, SETTINGS.deletion_seconds)

    assert decide(deleted(), SETTINGS).finalizer is False
    assert decide(deleted(pods=PODS, seconds=SETTINGS.deletion_seconds), SETTINGS).finalizer is False


def test_a_finished_job_that_is_deleted_keeps_saying_how_it_ended():
    plan = decide(deleted(pods=PODS, **finished("Succeeded", "Completed", hours=1) | {"cluster": None}), SETTINGS)

    assert plan.status is None or phase(plan) == "Succeeded"


def test_an_object_that_is_refused_ends_no_job_that_runs():
    running = snapshot(**living())
    plan = refused(running, decide(running, SETTINGS), Invalid("spec.x: no"))

    assert phase(plan) == "Running"
    assert conditions(plan.status)["Ready"][1] == "ObjectForbidden"


REFUSED = [
    ("suspended", {"base": job(suspend=True), **living()}, "Suspending"),
    ("a driver that ended", ended(75, "RankLost"), "Recovering"),
    ("the end of the last pod", {"base": job(suspend=True), "phase": "Suspending"}, "Suspended"),
]


@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_needs_no_object_is_done_although_one_is_refused(given, expected):
    seen = snapshot(**given)
    plan = decide(seen, SETTINGS)
    done = refused(seen, plan, Forbidden("quota"))

    assert (done.status, done.stop, done.end) == (plan.status, plan.stop, plan.end)
    assert (phase(done), done.apply, done.create) == (expected, (), ())


RESERVED = living(head=HeadReport()) | attempted("Reserved")


@pytest.mark.parametrize("given", [{}, RESERVED], ids=["a cluster", "a driver"])
def test_what_needs_an_object_is_not_said_to_be_done_where_it_is_refused(given):
    seen = snapshot(**given)
    plan = decide(seen, SETTINGS)
    assert plan.create or plan.submit
    said = refused(seen, plan, Forbidden("quota"))

    assert conditions(said.status)["Ready"] == ("False", "ObjectForbidden")
    assert said.status is not None
    assert said.status.driver == seen.job.status.driver


def test_a_job_of_another_controller_is_left_alone():
    assert plan_for(base=job(managedBy="example.com/other")) == Plan()
    assert phase(plan_for(base=job(managedBy=names.MANAGER_NAME))) == "Starting"


def test_a_template_of_another_form_fails_at_once_and_names_the_field():
    plan = plan_for(base=job(cluster={"head": {"template": {"spec": "none"}}}))

    assert plan.create == ()
    assert conditions(plan.status)["Failed"] == ("True", "ObjectInvalid")
    assert plan.status is not None
    assert "spec.cluster.head.template.spec" in next(c.message for c in plan.status.conditions if c.type == "Failed")


def test_a_job_without_any_image_says_so_and_waits():
    plan = decide(snapshot(), SETTINGS.model_copy(update={"trainer_image": None}))

    assert plan.create == ()
    assert conditions(plan.status)["Stalled"] == ("True", "ImageMissing")


def test_a_spec_that_this_version_cannot_read_stalls_and_touches_nothing():
    written = manifest({"phase": "Running"})
    written["spec"]["suspend"] = "perhaps"
    plan = decide(Snapshot(read_job(written), NOW), SETTINGS)

    assert (plan.delete, plan.apply, plan.create) == ((), (), ())
    assert phase(plan) == "Running"
    assert conditions(plan.status)["Stalled"] == ("True", "SpecNotReadable")

    written["spec"]["managedBy"] = "example.com/other"
    assert decide(Snapshot(read_job(written), NOW), SETTINGS) == Plan()


def of_tomorrow(**spec: Any) -> Job:
    """A newer CRD gave it a field."""
    written = manifest(**spec)
    written["spec"]["training"]["fieldOfTomorrow"] = {"on": True}
    return read_job(written)


OF_TOMORROW = [
    ("that runs", living(), {}, "Running", "DriverRunning"),
    ("whose driver ended", ended(75, "RankLost"), {}, "Recovering", "RankLost"),
    ("that is suspended", living(), {"suspend": True}, "Suspending", "Suspended"),
    ("that was made by a newer operator", living(cluster=ray_cluster(made_for=NODES)), {}, "Running", "DriverRunning"),
    ("that is new", {}, {}, "Starting", "SpecNotReadable"),
    ("that lost its cluster", attempted("Ended", phase="Recovering"), {}, "Recovering", "SpecNotReadable"),
]


@pytest.mark.parametrize(
    ("given", "spec", "phase_", "reason"), [row[1:] for row in OF_TOMORROW], ids=[row[0] for row in OF_TOMORROW]
)
def test_a_job_with_a_field_of_a_newer_api_goes_on_and_nothing_is_made_for_it(given, spec, phase_, reason):
    plan = plan_for(base=of_tomorrow(**spec), **given)

    assert (phase(plan), plan.apply, plan.create) == (phase_, (), ())
    assert conditions(plan.status)["Ready"][1] == reason
    assert conditions(plan.status)["Stalled"][0] == str(reason == "SpecNotReadable")


def test_a_status_that_a_newer_operator_wrote_is_left_as_it_is():
    read = read_job(manifest({"attempt": 3, "fieldOfTomorrow": 1}))
    assert (read.problem, read.status.attempt) == (None, 3)

    read = read_job(manifest({"attempt": 3, "phase": "Dreaming"}))
    assert read.status.attempt == 3
    plan = decide(Snapshot(read, NOW, {RAY_CLUSTER: {"job": ray_cluster()}}), SETTINGS)
    assert (plan.delete, plan.apply, plan.create, plan.submit) == ((), (), (), None)
    assert plan.status is not None
    assert (plan.status.phase, plan.status.attempt) == (read.status.phase, 3), "neither is written"
    (stalled,) = (each for each in plan.status.conditions if each.type == "Stalled")
    assert stalled.message.startswith("status.phase: ")


def test_a_finished_job_that_cannot_be_read_keeps_what_was_made_for_it():
    unread = replace(job(), read=None, problem="spec.unheardOf: no")
    plan = plan_for(base=unread, **finished("Failed", "JobError", hours=1000) | {"cluster": ray_cluster()})

    assert (plan.delete, plan.apply) == ((), ())
    assert plan.status is None or phase(plan) == "Failed"


def test_what_an_earlier_job_of_the_name_left_is_waited_for():
    old = ray_cluster()
    old["metadata"]["ownerReferences"][0]["uid"] = "another"
    plan = plan_for(cluster=old)

    assert (plan.create, plan.apply, plan.delete) == ((), (), ())
    assert conditions(plan.status)["Ready"] == ("False", "WaitingForRemoval")


def test_a_child_that_is_there_twice_in_kind_only_is_named_by_the_job():
    plan = plan_for()
    made = [(each["kind"], each["metadata"]["name"]) for each in (*plan.apply, *plan.create)]
    secret = f"job-auth-{UID[:8]}-{tokens.fingerprint(SETTINGS.key)}"
    for kind, name in ((CONFIG_MAP, "job-job"), (SECRET, secret), (RAY_CLUSTER, "job")):
        assert [each for each in made if each[0] == kind.name] == [(kind.name, name)]
