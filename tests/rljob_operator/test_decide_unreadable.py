"""What is decided for a job that this operator cannot read, or not whole: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.conditions import Reason
from rljob_operator.head import RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job, read_job
from rljob_operator.kube.kinds import RAY_CLUSTER
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import CLUSTER, decide, ended, living, phase, plan_for
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    attempted,
    conditions,
    job,
    manifest,
    ray_cluster,
    reports,
    snapshot,
)

NEWER = ray_cluster(made_for=job(cluster={"nodes": 3}).spec)
"""Made for a spec with more in it than this version reads."""


def test_a_spec_that_this_version_cannot_read_stalls_and_touches_nothing():
    written = manifest()
    written["spec"]["suspend"] = "perhaps"
    plan = plan_for(**living(base=read_job(written)))

    assert (plan.delete, plan.apply, plan.create) == ((), (), ())
    assert phase(plan) == "Running"
    assert conditions(plan.status)["Stalled"] == ("True", "SpecNotReadable")
    assert plan.status is not None
    said = next(each.message for each in plan.status.conditions if each.type == "Ready")
    assert said.startswith("spec.suspend: "), "the field to correct"
    assert said.endswith("(it is of another version of the API than this operator, or older than its rules)")
    assert "correct the field that the message names" in Reason.SPEC_NOT_READABLE.remedy

    written["spec"]["managedBy"] = "example.com/other"
    assert decide(Snapshot(read_job(written), NOW), SETTINGS) == Plan()


@pytest.mark.parametrize(
    ("given", "phase_"),
    [
        (living(head=None), "Running"),
        (living(cluster=None, pods=[], head=None), "Recovering"),
        (living(cluster=ray_cluster(uid="cc-2"), head=None), "Recovering"),
        (living(cluster=ray_cluster(deleting=True)), "Recovering"),
        (living(head=reports(RayJobState.FAILED)), "Recovering"),
        (living(head=HeadReport()), "Recovering"),
    ],
)
def test_a_job_that_nobody_can_read_does_not_run_without_its_driver(given, phase_):
    written = manifest()
    written["spec"]["suspend"] = "perhaps"
    plan = plan_for(**given | {"base": read_job(written)})

    assert (plan.delete, plan.create, plan.submit, plan.end) == ((), (), None, None)
    assert phase(plan) == phase_
    assert conditions(plan.status)["Running"][0] == conditions(plan.status)["Ready"][0] == str(phase_ == "Running")
    assert conditions(plan.status)["Stalled"] == ("True", "SpecNotReadable")


def of_tomorrow(**spec: Any) -> Job:
    """A newer CRD gave it a field."""
    written = manifest(**spec)
    written["spec"]["training"]["fieldOfTomorrow"] = {"on": True}
    return read_job(written)


OF_TOMORROW = [
    ("that runs", living(), {}, "Running", "DriverRunning"),
    ("whose driver ended", ended(75, "RankLost"), {}, "Recovering", "RankLost"),
    ("that is suspended", living(), {"suspend": True}, "Suspending", "Suspended"),
    (
        "that was made by a newer operator",
        living(cluster=NEWER),
        {},
        "Running",
        "DriverRunning",
    ),
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


def test_more_steps_wait_until_the_spec_that_wants_them_can_be_read():
    """What a driver would read is the older one: it would be done at once, with half of the steps."""
    base, done = of_tomorrow(training={"steps": 200}), ended(0, "Completed")
    driver = done["driver"].model_copy(update={"steps": 100})
    plan = plan_for(**done | {"base": base, "driver": driver})
    assert (phase(plan), conditions(plan.status)["Ready"][1]) == ("Recovering", "SpecNotReadable")
    assert plan.status is not None
    assert plan.status.driver == driver
    again = plan_for(base=base, cluster=ray_cluster(), pods=PODS, **attempted("Ended", phase="Recovering") | {
        "driver": driver.model_copy(update={"state": "Ended"}),
    })  # fmt: skip
    assert again.status is not None
    assert again.status.driver is not None
    assert (again.status.attempt, again.status.driver.steps, again.status.driver.generation) == (2, 100, None)


@pytest.mark.parametrize(
    ("spec", "reason"), [({"suspend": True}, "Suspended"), ({"activeDeadline": "1m"}, "DeadlineExceeded")]
)
def test_who_waits_for_that_is_stopped_all_the_same(spec, reason):
    done = ended(0, "Completed", start_time=NOW - timedelta(minutes=2))
    given = done | {"driver": done["driver"].model_copy(update={"steps": 100})}
    base = of_tomorrow(training={"steps": 200}, **spec)
    over = plan_for(base=base, **given)
    assert (phase(over), conditions(over.status)["Ready"][1]) == ("Suspending", reason)
    assert over.status is not None
    goes = decide(replace(snapshot(base, **given), job=replace(base, status=over.status)), SETTINGS)
    assert goes.delete == (CLUSTER,)


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
