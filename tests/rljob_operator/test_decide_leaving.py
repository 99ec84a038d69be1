"""What is decided while a head pod ends that was asked to, as by a drain: tables over snapshots."""

from dataclasses import replace
from typing import Any

import pytest

from tests.rljob_operator.decisions import (
    CLUSTER,
    decide,
    ended,
    leaving_head,
    living,
    phase,
    plan_for,
    recovering,
    restarted,
)
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    conditions,
    job,
    ray_cluster,
    snapshot,
)

STOPPED = ended(76, "StoppedOnRequest")["head"]
LEAVING_CLUSTER: dict[str, Any] = {"cluster": ray_cluster(), "pods": [leaving_head(), *PODS[1:]]}
HEADLESS: dict[str, Any] = {"cluster": ray_cluster(-1), "pods": PODS[1:]}


@pytest.mark.parametrize("then", [
    LEAVING_CLUSTER | {"head": STOPPED}, HEADLESS | {"head": STOPPED}, HEADLESS | {"head": None},
])  # fmt: skip
def test_a_head_pod_that_is_asked_to_end_costs_another_cluster_and_no_restart(then):
    asked = plan_for(**living(**LEAVING_CLUSTER))
    assert (phase(asked), asked.restart) == ("Recovering", None)
    assert [each.reason for each in asked.events].count("StoppedOnRequest") == 1
    assert asked.status is not None
    assert asked.status.driver is not None
    assert (asked.status.driver.state, asked.status.driver.stop_requested) == ("Submitted", NOW)

    over = decide(snapshot(replace(job(), status=asked.status), **then), SETTINGS)
    assert over.status is not None
    assert over.status.driver is not None
    assert (over.status.driver.state, over.restart) == ("Ended", None)
    assert conditions(over.status)["Ready"] == ("False", "StoppedOnRequest")
    gone = decide(snapshot(replace(job(), status=over.status), **HEADLESS), SETTINGS)
    assert (gone.delete, gone.restart) == ((CLUSTER,), None)


@pytest.mark.parametrize("then", [LEAVING_CLUSTER, HEADLESS])
def test_a_head_pod_that_is_asked_to_end_while_no_driver_runs_costs_no_restart(then):
    waits = recovering("restart_driver", wait=4.0)
    plan = plan_for(**LEAVING_CLUSTER, **waits)
    assert plan.status is not None
    assert (plan.status.recovery.action, plan.status.recovery.not_before) == (
        "rebuild_cluster", waits["recovery"].not_before,
    )  # fmt: skip
    after = decide(snapshot(replace(job(), status=plan.status), **then), SETTINGS)
    assert (plan.restart, after.restart, after.delete) == (None, None, (CLUSTER,))


def test_a_head_that_restarted_before_its_attempt_leaves_as_any_other():
    given = living(**LEAVING_CLUSTER | {"pods": [restarted(200.0)[0] | {"metadata": leaving_head()["metadata"]}]})
    assert conditions(plan_for(**given).status)["Ready"] == ("False", "StoppedOnRequest")
