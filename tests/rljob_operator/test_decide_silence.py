"""What is decided while nobody hears of a driver: tables over snapshots."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.contract import ExitRecord
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import CLUSTER, decide, living, not_taken, phase, plan_for
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    UID,
    attempted,
    conditions,
    job,
    ray_cluster,
    reports,
    snapshot,
)


def test_a_driver_that_is_silent_for_longer_than_hang_after_is_ended_and_followed_by_another():
    spec, beating = job(recovery={"hangAfter": "30s"}), living(head=reports(heartbeat=1))
    assert plan_for(base=spec, silent=30.0, **beating).end is None, "a sign of life takes some seconds"

    plan = plan_for(base=spec, silent=36.0, **beating)

    assert plan.end == f"{UID}-a1"
    assert phase(plan) == "Recovering"
    assert conditions(plan.status)["Ready"] == ("False", "DriverHung")


@pytest.mark.parametrize(
    ("code", "expected", "told"),
    [
        (0, "Succeeded", None),
        (64, "Failed", None),
        (76, "Recovering", f"{UID}-a1"),
        (75, "Recovering", f"{UID}-a1"),
    ],
)
def test_what_a_driver_has_recorded_of_its_end_counts_though_its_process_hangs(code, expected, told):
    """It holds the GPUs, so where they are wanted again, Ray is told to end it."""
    record = ExitRecord(code=code, reason="Reason", message="words")
    hangs = living(head=reports(heartbeat=5, exit=record))

    plan = plan_for(silent=70.0, **hangs)

    assert (phase(plan), plan.end) == (expected, told)
    assert plan.status is not None
    assert plan.status.restarts == (code == 75)
    assert phase(plan_for(silent=60.0, **hangs)) == "Running", "a process takes a moment to end"


def test_such_a_process_is_ended_too_where_more_steps_are_wanted():
    hangs = living(head=reports(heartbeat=5, exit=ExitRecord(code=0, reason="Completed", message="words")))
    given = hangs | {"driver": hangs["driver"].model_copy(update={"steps": 100})}
    of_tomorrow = replace(job(training={"steps": 200}), unread="a field")
    for base, reason in ((job(training={"steps": 200}), "MoreSteps"), (of_tomorrow, "SpecNotReadable")):
        plan = plan_for(base=base, silent=70.0, **given)
        assert (conditions(plan.status)["Ready"][1], plan.end) == (reason, f"{UID}-a1")


def test_nobody_waits_for_such_a_process_in_a_suspension():
    record = ExitRecord(code=76, reason="StoppedOnRequest", message="words")
    given = living(head=reports(heartbeat=5, exit=record), phase="Suspending")
    given["driver"] = given["driver"].model_copy(update={"stop_requested": NOW})
    for silent, deleted in ((60.0, ()), (70.0, (CLUSTER,))):
        assert plan_for(base=job(suspend=True), silent=silent, **given).delete == deleted


def test_a_process_that_ray_has_not_ended_for_long_costs_the_cluster():
    record = ExitRecord(code=76, reason="StoppedOnRequest", message="words")
    plan = plan_for(silent=666.0, **living(head=reports(heartbeat=5, exit=record)))
    assert conditions(plan.status)["Ready"] == ("False", "RayLost")


@pytest.mark.parametrize("words", ["Ray's Jobs API answered 500: no", "Ray's Jobs API gave no answer within 5 s"])
def test_that_ray_does_not_take_an_end_is_told_and_it_is_asked_again(words):
    seen = snapshot(silent=70.0, **living(head=reports(heartbeat=1)))
    plan = decide(seen, SETTINGS)
    assert plan.end is not None

    said = not_taken(seen, plan, words)

    assert phase(said) == "Recovering"
    assert said.status is not None
    ready = said.status.conditions[0]
    assert (ready.reason, words in ready.message) == ("DriverNotHeard", True)
    again = replace(seen, job=replace(seen.job, status=said.status))
    assert not_taken(again, plan, words) == Plan(), "it is said once"
    assert decide(again, SETTINGS).end == plan.end


HEADLESS = ray_cluster(-1)
"""Its head pod is there, and not ready."""

UNHEARD: list[tuple[str, dict[str, Any], float, str, str]] = [
    ("a head that does not answer for a moment", living(head=None), 60.0, "Running", "DriverRunning"),
    ("for a minute", living(head=None), 70.0, "Recovering", "HeadNotAnswering"),
    ("for long, but its node", living(head=None), 9_999.0, "Recovering", "HeadNotAnswering"),
    ("nor its node for ten minutes", living(head=None, cluster=HEADLESS), 601.0, "Recovering", "RayLost"),
    ("since the operator began", living(head=None, phase="Recovering"), 0.0, "Recovering", "HeadNotAnswering"),
    ("nor a worker", living(head=None, cluster=ray_cluster(1)), 601.0, "Recovering", "ClusterNotReady"),
    ("before the submission", living(head=None) | attempted("Reserved"), 0.0, "Starting", "HeadNotAnswering"),
    ("nor for long", living(head=None) | attempted("Reserved"), 9_999.0, "Starting", "HeadNotAnswering"),
    ("an agent alone", living(head=reports(agent=False)), 9_999.0, "Recovering", "DriverNotHeard"),
    ("a driver that has not begun at once", living(), 60.0, "Running", "DriverRunning"),
    ("within a minute", living(), 70.0, "Recovering", "DriverNotHeard"),
    ("within ten minutes", living(), 601.0, "Recovering", "DriverHung"),
    ("nor is ended by Ray", living(), 1201.0, "Recovering", "RayLost"),
]


UNAUTHORIZED: list[tuple[dict[str, Any], float, str, str]] = [
    (living(head=None), 0.0, "Recovering", "Unauthorized"),
    (living(head=None) | attempted("Reserved"), 0.0, "Starting", "Unauthorized"),
    (living(head=None), 601.0, "Recovering", "Unauthorized"),
    (living(head=None) | attempted("Reserved"), 601.0, "Starting", "Unauthorized"),
    (living(head=None, cluster=HEADLESS), 601.0, "Recovering", "RayLost"),
    (living(), 0.0, "Running", "DriverRunning"),
    (living(), 70.0, "Recovering", "Unauthorized"),
    (living(head=reports(agent=False)), 601.0, "Recovering", "Unauthorized"),
]


@pytest.mark.parametrize(("given", "silent", "phase_", "reason"), UNAUTHORIZED)
def test_a_head_that_does_not_take_the_token_is_said_to_do_so(given, silent, phase_, reason):
    plan = plan_for(silent=silent, unauthorized=True, **given)

    assert phase(plan) == phase_
    assert conditions(plan.status)["Ready"][1] == reason
    if reason == "RayLost":
        assert plan.status is not None
        assert "refused the operator's token for 601 s" in plan.status.conditions[0].message


@pytest.mark.parametrize(
    ("given", "silent", "phase_", "reason"), [row[1:] for row in UNHEARD], ids=[row[0] for row in UNHEARD]
)
def test_the_status_does_not_claim_for_long_what_nobody_tells(given, silent, phase_, reason):
    plan = plan_for(silent=silent, **given)

    assert phase(plan) == phase_
    ready = "True" if phase_ == "Running" else "False"
    assert conditions(plan.status)["Ready"] == (ready, reason)
    assert conditions(plan.status)["Running"][0] == ready
    assert plan.status is not None
    assert (plan.status.recovery.action is None) == (reason not in ("RayLost", "DriverHung"))
    assert (plan.end is None) == (reason != "DriverHung")


@pytest.mark.parametrize(("silent", "head"), [(601.0, None), (1201.0, reports())])
def test_a_driver_that_nobody_reaches_loses_its_cluster_at_once_where_its_job_ends(silent, head):
    """However long what has run is to be kept: its network may be whole again at any time."""
    base = job(recovery={"maxRestarts": 0}, ttlAfterFinished="24h")
    unheard = living(head=head, cluster=HEADLESS)
    told = plan_for(base=base, silent=silent, **unheard).status
    assert told is not None
    assert (told.phase, conditions(told)["Failed"]) == ("Failed", ("True", "RestartsExhausted"))

    over = decide(snapshot(replace(base, status=told), cluster=HEADLESS, pods=PODS), SETTINGS)
    assert (over.delete, over.again_in, over.status) == ((CLUSTER,), 86_400.0, None)
    gone = decide(snapshot(replace(base, status=told), cluster=ray_cluster(-1, deleting=True), pods=PODS), SETTINGS)
    assert (gone.delete, gone.again_in) == ((), 86_400.0)
