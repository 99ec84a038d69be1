"""What is decided while nobody hears of a driver: tables over snapshots."""

from dataclasses import replace

import pytest

from rljob_api.contract import ExitRecord
from tests.rljob_operator.decisions import CLUSTER, decide, living, plan_for
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    conditions,
    job,
    ray_cluster,
    reports,
    snapshot,
)


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


HEADLESS = ray_cluster(-1)
"""Its head pod is there, and not ready."""


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
