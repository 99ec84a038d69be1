"""What is decided when a job has finished, is deleted or cannot be worked on: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_operator import names, tokens
from rljob_operator.decide import decide, refused
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound, Unavailable
from rljob_operator.kube.kinds import CONFIG_MAP, NETWORK_POLICY, RAY_CLUSTER, SECRET, Manifest, Ref
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
    ray_cluster,
    snapshot,
)


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


def test_a_deletion_whose_time_is_over_takes_away_what_nobody_else_does_and_calls_none_of_it_nothing():
    late = SETTINGS.deletion_seconds
    assert decide(snapshot(replace(job(), deleted=NOW - timedelta(seconds=late)), pods=LEFT), SETTINGS) == Plan(
        finalizer=False, delete=tuple(map(Ref.of, LEFT[:2]))
    )
    kept = replace(job(), deleted=NOW - timedelta(seconds=late), finalizers=("x.y/z",))
    plan = decide(snapshot(kept, cluster=ray_cluster()), SETTINGS)
    assert plan.delete == (CLUSTER,)
    assert plan.status is not None
    assert plan.status.conditions[0].message.startswith("the RayCluster did not end within")


def of_kuberay(pod: Manifest, *owners: Manifest) -> Manifest:
    labels = {**pod["metadata"]["labels"], names.RAY_CLUSTER_LABEL: "job"}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels, "ownerReferences": list(owners)}}


OWNER: Manifest = {"kind": "RayCluster", "name": "job", "uid": "cc-1", "controller": True}
LEFT = [of_kuberay(PODS[0]), of_kuberay(PODS[1]), of_kuberay(PODS[2], OWNER)]
"""Of a RayCluster that was deleted with --cascade=orphan: of one nobody has told us yet."""


@pytest.mark.parametrize("base", [
    job(), job(suspend=True), replace(job(), deleted=NOW),
    replace(job(), status=job().status.model_copy(update=finished("Failed", "JobError", hours=2))),
])  # fmt: skip
def test_pods_whose_cluster_was_deleted_without_them_are_deleted(base):
    assert decide(snapshot(base, pods=LEFT), SETTINGS).delete == tuple(map(Ref.of, LEFT[:2]))
    assert [ref.kind for ref in decide(snapshot(base, cluster=ray_cluster(), pods=LEFT), SETTINGS).delete] in (
        [], [RAY_CLUSTER],
    )  # fmt: skip


def test_a_driver_in_pods_that_nobody_owns_does_not_train_on_for_a_job_that_is_over():
    base = job(recovery={"maxRestarts": 0}, ttlAfterFinished="2h")
    lost = decide(snapshot(base, pods=LEFT, **attempted("Submitted")), SETTINGS).status
    assert lost is not None
    assert lost.phase == "Failed"
    plan = decide(snapshot(replace(base, status=lost), pods=LEFT), SETTINGS)
    assert plan.delete == tuple(map(Ref.of, LEFT[:2]))


@pytest.mark.parametrize(("owners", "named"), [((), False), ((OWNER,), True)])
def test_a_cluster_that_holds_pods_and_is_not_the_job_s_any_more_is_named(owners, named):
    status = decide(snapshot(job(), pods=[of_kuberay(PODS[0], *owners)]), SETTINGS).status
    assert conditions(status)["Ready"] == ("False", "ClusterDeleting")
    assert status is not None
    assert ("RayCluster job has them" in status.conditions[0].message) == named


def test_a_finished_job_that_is_deleted_keeps_saying_how_it_ended():
    plan = decide(deleted(pods=PODS, **finished("Succeeded", "Completed", hours=1) | {"cluster": None}), SETTINGS)

    assert plan.status is None or phase(plan) == "Succeeded"


def test_an_object_that_is_refused_ends_no_job_that_runs():
    running = snapshot(**living())
    plan = refused(running, decide(running, SETTINGS), Invalid("spec.x: no"))

    assert phase(plan) == "Running"
    assert conditions(plan.status)["Ready"][1] == "ObjectInvalid"
    assert [each.reason for each in plan.events if each.warning] == ["ObjectInvalid"]
    assert plan.again_in is None, "it is asked for again, but not at once"


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


BEGUN = [
    ("between two attempts", living(start_time=NOW) | attempted("Ended", phase="Recovering"), "Recovering"),
    ("without its cluster", attempted("Ended", phase="Recovering", start_time=NOW), "Recovering"),
    ("with a driver that nobody has heard", living(head=None) | attempted("Reserved"), "Starting"),
]


@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in BEGUN], ids=[row[0] for row in BEGUN])
def test_an_invalid_object_fails_no_job_that_has_begun(given, expected):
    plan = refused(snapshot(**given), Plan(), Invalid("spec.x: no"))

    assert (phase(plan), conditions(plan.status)["Ready"][1]) == (expected, "ObjectInvalid")


def test_an_object_that_still_belongs_to_an_earlier_job_is_waited_for():
    plan = refused(snapshot(), Plan(), Invalid("metadata.ownerReferences: Only one reference can have Controller"))

    assert (phase(plan), conditions(plan.status)["Ready"][1]) == ("Pending", "WaitingForRemoval")


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


FAILED_AT = [
    ("new", {}, "Starting"),
    ("running", living(), "Running"),
    ("between two attempts", living(start_time=NOW) | attempted("Ended", phase="Recovering"), "Recovering"),
    ("deleted", {"base": replace(job(), deleted=NOW), "pods": PODS}, "Deleting"),
]


@pytest.mark.parametrize("kind", [NotFound, Unavailable])
@pytest.mark.parametrize(("given", "expected"), [row[1:] for row in FAILED_AT], ids=[row[0] for row in FAILED_AT])
def test_what_the_api_server_fails_at_is_said_once_and_ends_nothing(given, expected, kind):
    error = kind("the server could not find the requested resource")
    error.asked = "create RayCluster"
    seen = snapshot(**given)
    told = decide(seen, SETTINGS).status
    seen = replace(seen, job=replace(seen.job, status=told or seen.job.status))
    said = refused(seen, Plan(), error)

    assert phase(said) == expected
    assert said.status is not None
    ready = said.status.conditions[0]
    assert (ready.type, ready.reason) == ("Ready", "ObjectFailing")
    assert ready.message == f"the API server fails at it: create RayCluster: {error.message}"
    assert [(each.reason, each.warning) for each in said.events] == [("ObjectFailing", True)]
    again = replace(seen, job=replace(seen.job, status=said.status))
    assert refused(again, Plan(), error) == Plan()


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


def test_a_deletion_that_is_refused_is_said_but_never_of_a_job_that_is_over():
    asked = attempted("Submitted")["driver"].model_copy(update={"stop_requested": NOW - timedelta(hours=1)})
    seen = snapshot(base=job(suspend=True), **living(driver=asked, phase="Suspending"))
    plan = decide(seen, SETTINGS)
    assert plan.delete == (CLUSTER,)
    said = refused(seen, plan, Forbidden("a policy keeps it"))
    assert said.status is not None
    assert said.status.phase == "Suspending"
    ready = next(each for each in said.status.conditions if each.type == "Ready")
    assert (ready.reason, ready.message) == ("ObjectForbidden", "the API server refuses it: a policy keeps it")
    assert ("ObjectForbidden", True) in [(each.reason, each.warning) for each in said.events]
    again = replace(seen, job=replace(seen.job, status=said.status))
    assert refused(again, decide(again, SETTINGS), Forbidden("a policy keeps it")) == Plan(), "it is said once"

    over = finished("Succeeded", "Completed", hours=2) | {"cluster": ray_cluster()}
    seen = snapshot(base=job(ttlAfterFinished="2h"), pods=PODS, **over)
    plan = decide(seen, SETTINGS)
    assert plan.delete == (CLUSTER,)
    assert refused(seen, plan, Forbidden("a policy keeps it")) == Plan()


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


SIDE = {"name": "side", "image": "i"}


@pytest.mark.parametrize(
    ("containers", "words"),
    [
        ([{"name": "agent", "env": "none"}], "spec.cluster.head.template.spec.containers[0].env must be a list"),
        ([SIDE, SIDE], "spec.cluster.head.template.spec.containers[1] has the same name side"),
    ],
)
def test_a_template_that_cannot_be_merged_fails_at_once_and_names_the_field(containers, words):
    base = job(cluster={"head": {"template": {"spec": {"containers": containers}}}})
    plan = plan_for(base=base)

    assert plan.create == ()
    assert conditions(plan.status)["Failed"] == ("True", "ObjectInvalid")
    assert plan.status is not None
    assert words in next(c.message for c in plan.status.conditions if c.type == "Failed")

    begun = plan_for(base=base, **attempted("Ended", phase="Recovering", start_time=NOW))
    assert (phase(begun), conditions(begun.status)["Ready"][1]) == ("Recovering", "ObjectInvalid")


def test_a_job_without_any_image_says_so_and_waits():
    plan = decide(snapshot(), SETTINGS.model_copy(update={"trainer_image": None}))

    assert plan.create == ()
    assert conditions(plan.status)["Stalled"] == ("True", "ImageMissing")


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
