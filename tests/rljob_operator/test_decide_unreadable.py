"""What is decided for a job that this operator cannot read, or not whole: tables over snapshots."""

from typing import Any

import pytest

from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job, read_job
from rljob_operator.kube.kinds import RAY_CLUSTER
from rljob_operator.observe.snapshot import Snapshot
from tests.rljob_operator.decisions import decide, ended, living, phase, plan_for
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
)

NEWER = ray_cluster(made_for=job(cluster={"nodes": 3}).spec)
"""Made for a spec with more in it than this version reads."""


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
