"""What is decided when a job is deleted, or its RayCluster without its pods: tables over snapshots."""

from dataclasses import replace

import pytest

from rljob_operator import names
from rljob_operator.kube.errors import Forbidden
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import decide, deleted, phase, refused
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    attempted,
    conditions,
    job,
    ray_cluster,
    snapshot,
)


def test_a_deleted_job_that_anothers_finalizer_keeps_says_so_and_waits_for_no_pods_any_more():
    last = decide(deleted(pods=PODS), SETTINGS).status
    assert last is not None
    kept = replace(job(), deleted=NOW, finalizers=("x.y/z", names.FINALIZER), status=last)
    assert decide(snapshot(kept), SETTINGS) == Plan(finalizer=False, again_in=0.0)

    told = decide(snapshot(replace(kept, finalizers=("x.y/z",))), SETTINGS)
    assert (told.finalizer, phase(told), told.apply) == (None, "Deleting", ())
    assert told.status is not None
    assert "x.y/z" in told.status.conditions[0].message
    again = decide(snapshot(replace(kept, finalizers=("x.y/z",), status=told.status)), SETTINGS)
    assert (again.status, again.events) == (None, ())
    assert decide(snapshot(replace(kept, finalizers=("foregroundDeletion",))), SETTINGS) == Plan(finalizer=False)


@pytest.mark.parametrize("given", [{}, {"cluster": ray_cluster(), "pods": PODS}])
def test_a_deleted_job_whose_finalizer_or_cluster_may_not_go_is_not_said_to_run(given):
    late = deleted(seconds=SETTINGS.deletion_seconds, **attempted("Submitted"), **given)
    plan = decide(late, SETTINGS)
    assert plan.finalizer is False
    status = refused(late, plan, Forbidden("a webhook denies it")).status
    assert status is not None
    assert status.phase == "Deleting"
    assert (conditions(status)["Ready"], conditions(status)["Running"][0]) == (("False", "ObjectForbidden"), "False")
