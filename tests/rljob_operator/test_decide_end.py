"""What is decided when a job has finished or cannot be worked on: tables over snapshots."""

from dataclasses import replace

import pytest

from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Invalid, Unavailable
from rljob_operator.kube.kinds import CONFIG_MAP, NETWORK_POLICY, RAY_CLUSTER, SECRET, Ref
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import CLUSTER, decide, deleted, ended, finished, living, phase, plan_for, refused
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    SETTINGS,
    UID,
    attempted,
    conditions,
    job,
    ray_cluster,
    snapshot,
)


def test_pods_that_are_ending_keep_what_protects_them():
    over = finished("Failed", "JobError", hours=2) | {"cluster": None}
    policy = {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "job", "namespace": "team", "uid": "p"},
    }  # fmt: skip
    for pods, gone in ((PODS, ()), ([], (Ref.of(policy),))):
        seen = snapshot(job(), pods=pods, **over)
        assert decide(replace(seen, children={NETWORK_POLICY: {"job": policy}}), SETTINGS).delete == gone


NOT_BEGUN = [
    ("at the first look", {}),
    ("when its RayCluster was made beside it", {"cluster": ray_cluster(1, provisioned=False), "phase": "Starting"}),
    ("after a suspension", {"cluster": ray_cluster(1, provisioned=False)} | attempted("Ended", phase="Starting")),
]


@pytest.mark.parametrize("given", [row[1] for row in NOT_BEGUN], ids=[row[0] for row in NOT_BEGUN])
def test_an_invalid_object_fails_a_job_that_has_not_begun(given):
    seen = snapshot(**given)
    told = decide(seen, SETTINGS).status
    seen = replace(seen, job=replace(seen.job, status=told or seen.job.status))
    plan = refused(seen, Plan(), Invalid("spec.x: no"))

    assert conditions(plan.status)["Failed"] == ("True", "ObjectInvalid")
    assert [each.reason for each in plan.events].count("ObjectInvalid") == 1
    assert plan.status is not None
    assert (plan.status.completion_time, plan.again_in) == (NOW, 0.0)
    gone = decide(replace(seen, job=replace(seen.job, status=plan.status)), SETTINGS)
    assert gone.delete == ((CLUSTER,) if seen.cluster else ())


REFUSED = [
    ("suspended", {"base": job(suspend=True), **living()}, "Suspending"),
    ("a driver that ended", ended(75, "RankLost"), "Recovering"),
    ("the end of the last pod", {"base": job(suspend=True), "phase": "Suspending"}, "Suspended"),
]


@pytest.mark.parametrize("error", [Forbidden("quota"), Unavailable("etcd")], ids=["refused", "failed at"])
@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_needs_no_object_is_done_although_one_is_refused(given, expected, error):
    seen = snapshot(**given)
    plan = decide(seen, SETTINGS)
    done = refused(seen, plan, error)

    assert (done.status, done.stop, done.end, done.restart) == (plan.status, plan.stop, plan.end, plan.restart)
    assert done.again_in == 0.0, "it goes on at once"
    assert (phase(done), done.apply, done.create) == (expected, (), ())


def test_a_name_that_is_taken_waits_for_a_person_and_what_runs_goes_on():
    taken = AlreadyExists("ConfigMap job-job exists and is not this job's")
    for given in ({}, living()):
        seen = snapshot(**given)
        said = refused(seen, decide(seen, SETTINGS), taken)
        assert conditions(said.status)["Stalled"] == ("True", "NameTaken")
        assert conditions(said.status)["Running"][0] == ("True" if given else "False")
        assert [(each.reason, each.message) for each in said.events if each.warning] == [("NameTaken", taken.message)]
        assert said.status is not None
        again = replace(seen, job=replace(seen.job, status=said.status))
        assert refused(again, decide(again, SETTINGS), taken) == Plan(), "it is said once"


def test_a_finalizer_that_is_not_taken_away_is_said_and_fails_no_job_that_goes():
    seen = deleted(phase="Deleting")
    plan = decide(seen, SETTINGS)
    assert plan.finalizer is False
    for error in (Invalid("spec.x: no"), Forbidden("a policy keeps it"), Unavailable("etcd")):
        said = refused(seen, plan, error)
        assert phase(said) == "Deleting"
        assert conditions(said.status)["Failed"][0] == "False"
    over = finished("Succeeded", "Completed", hours=1) | {"cluster": None}
    assert refused(deleted(**over), plan, Forbidden("no")) == Plan()


def test_a_job_of_another_controller_is_left_alone():
    assert plan_for(base=job(managedBy="example.com/other")) == Plan()
    assert phase(plan_for(base=job(managedBy=names.MANAGER_NAME))) == "Starting"


def test_a_job_that_another_release_looks_after_is_left_alone():
    ours = plan_for(base=job()).status
    assert ours is not None
    assert ours.operator == SETTINGS.operator_namespace, "the first to say so looks after it"

    elsewhere = {"operator": "other-system"}
    assert plan_for(**elsewhere) == Plan()
    assert plan_for(**living(cluster=ray_cluster(), **elsewhere)) == Plan()
    assert plan_for(base=deleted().job, **elsewhere) == Plan()


def test_a_finished_job_that_cannot_be_read_keeps_what_was_made_for_it():
    unread = replace(job(), read=None, problem="spec.unheardOf: no")
    plan = plan_for(base=unread, **finished("Failed", "JobError", hours=1000) | {"cluster": ray_cluster()})

    assert (plan.delete, plan.apply) == ((), ())
    assert plan.status is None or phase(plan) == "Failed"


def test_a_child_that_is_there_twice_in_kind_only_is_named_by_the_job():
    plan = plan_for()
    made = [(each["kind"], each["metadata"]["name"]) for each in (*plan.apply, *plan.create)]
    secret = f"job-auth-{UID[:8]}-{tokens.fingerprint(SETTINGS.key)}"
    for kind, name in ((CONFIG_MAP, "job-job"), (SECRET, secret), (RAY_CLUSTER, "job")):
        assert [each for each in made if each[0] == kind.name] == [(kind.name, name)]


def test_what_stalls_a_job_next_is_an_event_of_its_own():
    seen = snapshot()
    taken = refused(seen, Plan(), AlreadyExists("ConfigMap job-job exists"))
    assert taken.status is not None
    begun = replace(seen, job=replace(seen.job, status=taken.status.model_copy(update={"start_time": NOW})))
    invalid = refused(begun, Plan(), Invalid("spec.x: no"))
    assert [(each.reason, each.warning) for each in invalid.events] == [("ObjectInvalid", True)]
    assert invalid.status is not None
    again = replace(begun, job=replace(begun.job, status=invalid.status))
    assert refused(again, Plan(), Invalid("spec.x: no")).events == ()
