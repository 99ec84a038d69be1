"""What is decided while nobody hears of a driver: tables over snapshots."""

from typing import Any

import pytest

from tests.rljob_operator.decisions import living, phase, plan_for
from tests.rljob_operator.snapshots import (
    UID,
    attempted,
    conditions,
    job,
    ray_cluster,
    reports,
)


def test_a_driver_that_is_silent_for_longer_than_hang_after_is_ended_and_followed_by_another():
    spec, beating = job(recovery={"hangAfter": "30s"}), living(head=reports(heartbeat=1))
    assert plan_for(base=spec, silent=30.0, **beating).end is None, "a sign of life takes some seconds"

    plan = plan_for(base=spec, silent=36.0, **beating)

    assert plan.end == f"{UID}-a1"
    assert phase(plan) == "Recovering"
    assert conditions(plan.status)["Ready"] == ("False", "DriverHung")


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
