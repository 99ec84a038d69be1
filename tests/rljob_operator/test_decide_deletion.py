"""What is decided when a job is deleted, or its RayCluster without its pods: tables over snapshots."""

from dataclasses import replace

import pytest

from rljob_operator import names
from rljob_operator.kube.errors import Forbidden
from rljob_operator.kube.kinds import POD, Manifest, Ref
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import decide, deleted, finished, phase, refused
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


def of_kuberay(pod: Manifest, *owners: Manifest) -> Manifest:
    labels = {**pod["metadata"]["labels"], names.RAY_CLUSTER_LABEL: "job"}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels, "ownerReferences": list(owners)}}


OWNER: Manifest = {"kind": "RayCluster", "name": "job", "uid": "cc-1", "controller": True}
LEFT = [of_kuberay(PODS[0]), of_kuberay(PODS[1]), of_kuberay(PODS[2], OWNER)]
"""Of a RayCluster that was deleted with --cascade=orphan: of one nobody has told us yet."""


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


@pytest.mark.parametrize("base", [
    job(), job(suspend=True), replace(job(), deleted=NOW),
    replace(job(), status=job().status.model_copy(update=finished("Failed", "JobError", hours=2))),
])  # fmt: skip
def test_pods_whose_cluster_was_deleted_without_them_are_deleted(base):
    assert decide(snapshot(base, pods=LEFT), SETTINGS).delete == tuple(map(Ref.of, LEFT[:2]))
    with_cluster = decide(snapshot(base, cluster=ray_cluster(), pods=LEFT), SETTINGS)
    assert POD not in [ref.kind for ref in with_cluster.delete]


def test_a_driver_in_pods_that_nobody_owns_does_not_train_on_for_a_job_that_is_over():
    base = job(recovery={"maxRestarts": 0}, ttlAfterFinished="2h")
    lost = decide(snapshot(base, pods=LEFT, **attempted("Submitted")), SETTINGS).status
    assert lost is not None
    assert lost.phase == "Failed"
    plan = decide(snapshot(replace(base, status=lost), pods=LEFT), SETTINGS)
    assert plan.delete == tuple(map(Ref.of, LEFT[:2]))
