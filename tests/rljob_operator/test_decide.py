"""The decision for each state of a job's life: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress, RecoveryStatus
from rljob_operator import names
from rljob_operator.decide import decide, refused
from rljob_operator.decide.starting import WAIT_SECONDS
from rljob_operator.head import RayJob, RayJobState
from rljob_operator.kube.errors import Invalid
from rljob_operator.kube.kinds import CONFIG_MAP, RAY_CLUSTER, SECRET, Ref
from rljob_operator.plan import Plan
from rljob_operator.snapshot import HeadReport, Snapshot
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    NOW,
    PODS,
    SETTINGS,
    UID,
    attempted,
    conditions,
    job,
    manifest,
    pod,
    ray_cluster,
    reports,
    snapshot,
    stamp,
)

CLUSTER = Ref(RAY_CLUSTER, "team", "job", CLUSTER_UID)


def plan_for(**given: Any) -> Plan:
    return decide(snapshot(**given), SETTINGS)


def living(**given: Any) -> dict[str, Any]:
    """A snapshot's arguments: the driver runs."""
    return {"cluster": ray_cluster(), "pods": PODS, "head": reports()} | attempted("Submitted") | given


def ended(code: int, reason: str, message: str = "words", field: str | None = None, **given: Any) -> dict[str, Any]:
    state = RayJobState.SUCCEEDED if code == 0 else RayJobState.FAILED
    record = ExitRecord(code=code, reason=reason, message=message, field=field)
    return living(head=reports(state, exit=record), **given)


def phase(plan: Plan) -> str:
    assert plan.status is not None
    return plan.status.phase


# ---- the way up


def test_a_new_job_gets_a_finalizer_its_children_and_a_cluster():
    plan = decide(snapshot(replace(job(), finalizers=())), SETTINGS)

    assert plan.finalizer is True
    assert {each["kind"] for each in plan.apply} == {
        "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "PersistentVolumeClaim",
    }  # fmt: skip
    assert [each["kind"] for each in plan.create] == ["Secret", "RayCluster"]
    assert phase(plan) == "Starting"
    assert conditions(plan.status)["Reconciling"] == ("True", "ClusterNotReady")
    assert conditions(plan.status)["Ready"] == ("False", "ClusterNotReady")


@pytest.mark.parametrize(
    ("cluster", "pods", "words"),
    [
        (ray_cluster(0, provisioned=False), [], "0 of 2 workers ready"),
        (ray_cluster(1, provisioned=False), PODS, "1 of 2 workers ready"),
        (
            ray_cluster(0, provisioned=False),
            [pod("w", names.WORKER, "Pending", conditions=[
                {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient nvidia.com/gpu"}])],
            "w is not scheduled: 0/3 nodes: 3 Insufficient nvidia.com/gpu",
        ),
        (
            ray_cluster(0, provisioned=False),
            [pod("w", names.WORKER, "Pending", containerStatuses=[
                {"name": "ray-worker", "state": {"waiting": {"reason": "ErrImagePull", "message": "EOF"}}}])],
            "w: ErrImagePull: EOF",
        ),
    ],
)  # fmt: skip
def test_a_cluster_that_is_not_ready_says_what_it_waits_for(cluster, pods, words):
    plan = plan_for(cluster=cluster, pods=pods)

    assert plan.create == ()
    assert phase(plan) == "Starting"
    assert plan.status is not None
    assert words in next(each.message for each in plan.status.conditions if each.type == "Ready")


def test_an_attempt_is_reserved_in_the_status_before_anything_is_submitted():
    plan = plan_for(cluster=ray_cluster(), pods=PODS)

    assert plan.submit is None
    assert plan.status is not None
    assert plan.status.attempt == 1
    assert plan.status.driver is not None
    assert (plan.status.driver.state, plan.status.driver.cluster_uid) == ("Reserved", CLUSTER_UID)
    assert plan.again_in == 0.0


def test_a_reserved_attempt_is_submitted_where_ray_does_not_know_it():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, head=HeadReport(), **attempted("Reserved"))

    assert plan.submit is not None
    assert (plan.submit.id, plan.submit.attempt) == (f"{UID}-a1", 1)


def test_a_reserved_attempt_that_ray_knows_runs():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, head=reports(), **attempted("Reserved"))

    assert plan.submit is None
    assert phase(plan) == "Running"
    assert plan.status is not None
    assert plan.status.start_time == NOW
    assert plan.status.driver is not None
    assert plan.status.driver.state == "Submitted"


def test_a_head_that_does_not_answer_is_not_submitted_to():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, head=None, **attempted("Reserved"))

    assert plan.submit is None
    assert conditions(plan.status)["Ready"] == ("False", "HeadNotAnswering")


def test_a_running_job_shows_progress_and_checkpoint():
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    progress = Progress(step=25, total_steps=100, reward=0.5)
    plan = plan_for(**living(head=reports(progress=progress, checkpoint=saved)))

    assert plan.status is not None
    assert (plan.status.progress, plan.status.checkpoint) == (progress, saved)
    assert conditions(plan.status)["Running"] == ("True", "DriverRunning")
    assert conditions(plan.status)["CheckpointAvailable"] == ("True", "Saved")
    assert [event.reason for event in plan.events if "checkpoint" in event.message] == ["CheckpointSaved"]


def test_what_is_known_stays_where_the_head_does_not_answer():
    progress = Progress(step=25, total_steps=100)
    plan = plan_for(**living(head=None, progress=progress))

    assert phase(plan) == "Running"
    assert plan.status is not None
    assert plan.status.progress == progress


def test_nothing_new_gives_nothing_to_write():
    first = living()
    told = decide(snapshot(**first), SETTINGS).status
    assert told is not None
    base = replace(job(), status=told)
    plan = decide(Snapshot(base, NOW + timedelta(seconds=60), *_rest(snapshot(**first))), SETTINGS)

    assert (plan.status, plan.events, plan.create, plan.delete, plan.submit) == (None, (), (), (), None)


LOOKS: list[tuple[str, Any, float | None, bool, float]] = [
    ("nobody has told anything yet", {}, None, True, 5.0),
    ("just told", {}, 0.0, False, 5.0),
    ("told a little ago", {}, 12.0, False, 3.0),
    ("told long ago", {}, 15.0, True, 5.0),
    ("our clock was set back", {}, -60.0, True, 5.0),
    ("a new checkpoint", {"checkpoint": CheckpointStatus(step=20, path="p", time=NOW)}, 0.0, True, 5.0),
]


@pytest.mark.parametrize(("report", "ago", "told", "again_in"), [row[1:] for row in LOOKS], ids=[r[0] for r in LOOKS])
def test_progress_waits_a_little_and_a_checkpoint_takes_it_along(report, ago, told, again_in):
    first = snapshot(**living())
    status = decide(first, SETTINGS).status
    assert status is not None
    running = replace(job(), status=status)
    head = reports(progress=Progress(step=25, total_steps=100), **report)
    last = None if ago is None else NOW - timedelta(seconds=ago)
    plan = decide(Snapshot(running, NOW, first.children, first.pods, head, last), SETTINGS)

    assert ((plan.status and plan.status.progress) == head.progress) == told
    assert plan.again_in == again_in


def test_a_job_that_waits_for_pods_is_left_alone_until_there_is_news_unless_time_matters():
    started = {"start_time": NOW, "cluster": ray_cluster(1, provisioned=False)}
    ending = pod("old", names.WORKER)
    ending["metadata"]["deletionTimestamp"] = stamp(NOW)

    assert plan_for(**started).again_in is None
    assert plan_for(**started, pods=[ending]).again_in == WAIT_SECONDS
    assert plan_for(**started, base=job(activeDeadline="1h")).again_in == WAIT_SECONDS


def test_a_pod_more_is_told_with_the_next_transition():
    waiting = decide(snapshot(cluster=ray_cluster(0, provisioned=False)), SETTINGS).status
    assert waiting is not None
    base = replace(job(), status=waiting)
    assert plan_for(base=base, cluster=ray_cluster(1, provisioned=False), told=NOW).status is None

    plan = plan_for(base=base, cluster=ray_cluster(), pods=PODS, told=NOW)
    assert plan.status is not None
    assert plan.status.attempt == 1
    assert plan.status.cluster is not None
    assert plan.status.cluster.ready_workers == 2


def _rest(of: Snapshot) -> tuple[Any, ...]:
    return of.children, of.pods, of.head


# ---- failures


ENDS: list[tuple[str, dict[str, Any], str, str]] = [
    ("done", ended(0, "Completed"), "Succeeded", "Completed"),
    ("done without a record", living(head=HeadReport(RayJob(RayJobState.SUCCEEDED))), "Succeeded", "Completed"),
    ("a wrong job", ended(64, "JobError"), "Failed", "JobError"),
    ("wrong data", ended(65, "DataError"), "Failed", "DataError"),
    ("wrong reward code", ended(66, "RewardError", field="spec.rewards.functions[0]"), "Failed", "RewardError"),
    ("a lost rank", ended(75, "RankLost"), "Recovering", "RankLost"),
    ("no usable checkpoint", ended(78, "NoUsableCheckpoint"), "Failed", "NoUsableCheckpoint"),
    ("stopped by an eviction", ended(76, "StoppedOnRequest"), "Recovering", "StoppedOnRequest"),
    ("fenced", ended(77, "Fenced"), "Failed", "Fenced"),
    (
        "killed without a record",
        living(head=HeadReport(RayJob(RayJobState.FAILED, "killed", driver_exit_code=137))),
        "Recovering",
        "DriverLost",
    ),
    ("Ray forgot it", living(head=HeadReport(None)), "Recovering", "RayLost"),
    ("its cluster is gone", living(cluster=None, pods=[], head=None), "Recovering", "RayLost"),
    ("its cluster is another", living(cluster=ray_cluster(uid="cc-2"), head=None), "Recovering", "RayLost"),
    ("its head pod is gone", living(cluster=ray_cluster(-1), pods=PODS[1:], head=None), "Recovering", "RayLost"),
    (
        "its head pod failed",
        living(cluster=ray_cluster(-1), pods=[pod("head", names.HEAD, "Failed"), *PODS[1:]], head=None),
        "Recovering",
        "RayLost",
    ),
    (
        "an image that is not there",
        living(pods=[*PODS, pod("w", names.WORKER, "Pending", containerStatuses=[
            {"name": "ray-worker", "image": "i:2", "state": {"waiting": {
                "reason": "ImagePullBackOff", "message": "i:2: not found"}}}])]),
        "Failed",
        "ImageNotUsable",
    ),
]  # fmt: skip


def test_a_head_pod_that_no_watch_has_told_of_is_not_lost_while_kuberay_sees_it():
    plan = plan_for(cluster=ray_cluster(), pods=[])

    assert (phase(plan), plan.restart) == ("Starting", None)


@pytest.mark.parametrize(("given", "phase_", "reason"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_how_an_attempt_ends(given, phase_, reason):
    plan = plan_for(**given)

    assert phase(plan) == phase_
    assert plan.status is not None
    assert conditions(plan.status)["Ready"][1] == reason
    assert plan.status.driver is not None
    assert (plan.status.driver.state == "Ended") == (reason != "ImageNotUsable")
    assert (plan.status.completion_time == NOW) == (phase_ in ("Succeeded", "Failed"))
    assert conditions(plan.status)["Stalled"][0] == str(phase_ == "Failed")


def test_a_driver_that_is_silent_for_longer_than_hang_after_is_ended_and_followed_by_another():
    spec = job(recovery={"hangAfter": "30s"})
    assert plan_for(base=spec, **living(head=reports(silent=30.0))).end is None, "a sign of life takes some seconds"

    plan = plan_for(base=spec, **living(head=reports(silent=36.0)))

    assert plan.end == f"{UID}-a1"
    assert phase(plan) == "Recovering"
    assert conditions(plan.status)["Ready"] == ("False", "DriverHung")


@pytest.mark.parametrize(
    ("seconds", "evicted_by", "allowed", "forced"),
    [
        (0.0, "DeletionByTaintManager", True, False),
        (1.0, "DeletionByTaintManager", True, True),
        (1.0, "DeletionByTaintManager", False, False),
        (1.0, "EvictionByEvictionAPI", True, False),
    ],
)
def test_pods_lost_with_their_node_are_named_and_deleted_where_the_user_allows_it(
    seconds, evicted_by, allowed, forced
):  # fmt: skip
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": evicted_by}]
    lost = pod("worker-0", names.WORKER, conditions=disrupted) | {"spec": {"nodeName": "n1"}}
    lost["metadata"]["deletionTimestamp"] = stamp(NOW)
    plan = plan_for(
        base=job(recovery={"forceDeleteLostPods": allowed}), pods=[lost], phase="Recovering", seconds=seconds
    )

    assert plan.force == ((Ref.of(lost),) if forced else ())
    assert plan.status is not None
    (ready,) = (each for each in plan.status.conditions if each.type == "Ready")
    named = seconds > 0 and evicted_by == "DeletionByTaintManager"
    assert ("worker-0 on node n1: lost with its node" in ready.message) == named


def test_a_terminal_failure_names_the_field_in_the_driver_s_own_words():
    plan = plan_for(**ended(66, "RewardError", "compute_score raised KeyError", "spec.rewards.functions[0].source"))

    assert plan.status is not None
    message = next(each.message for each in plan.status.conditions if each.type == "Failed")
    assert message.startswith("spec.rewards.functions[0].source: ")
    assert "compute_score raised KeyError" in message


def test_the_budget_ends_and_a_new_checkpoint_renews_it():
    spent = RecoveryStatus(durable_step=10, charged=5, cures={"driver": 2, "pods": 2, "cluster": 1})
    saved = CheckpointStatus(step=20, path="p", time=NOW)

    over = plan_for(**ended(75, "RankLost", recovery=spent))
    assert (phase(over), conditions(over.status)["Failed"]) == ("Failed", ("True", "RestartsExhausted"))

    given = ended(75, "RankLost", recovery=spent, restarts=5)
    given["head"] = replace(given["head"], checkpoint=saved)
    again = plan_for(**given)
    assert phase(again) == "Recovering"
    assert again.status is not None
    assert (again.status.recovery.charged, again.status.recovery.durable_step, again.status.restarts) == (1, 20, 6)


LADDER = [(0, "restart_driver"), (2, "replace_pods"), (4, "rebuild_cluster")]


@pytest.mark.parametrize(("before", "action"), LADDER)
def test_the_ladder_is_climbed_while_nothing_helps(before, action):
    levels = ["driver", "driver", "pods", "pods"][:before]
    recovery = RecoveryStatus(charged=before, cures={level: levels.count(level) for level in levels})
    plan = plan_for(**ended(75, "RankLost", recovery=recovery))

    assert plan.status is not None
    assert plan.status.recovery.action == action
    assert plan.status.recovery.cluster_uid == CLUSTER_UID


def recovering(action: str, *, wait: float = 0.0) -> dict[str, Any]:
    recovery = RecoveryStatus(
        charged=1, action=action, decided=NOW, not_before=NOW + timedelta(seconds=wait), cluster_uid=CLUSTER_UID
    )  # fmt: skip
    return attempted("Ended", recovery=recovery, phase="Recovering")


def test_a_driver_restarts_on_the_living_cluster_after_its_wait():
    waiting = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("restart_driver", wait=4.0))
    assert (waiting.again_in, waiting.delete, waiting.create) == (4.0, (), ())

    plan = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("restart_driver"))
    assert plan.status is not None
    assert plan.status.attempt == 2
    assert plan.status.recovery.action is None
    assert plan.status.recovery.charged == 1
    assert (plan.delete, plan.create) == ((), ())


def test_replaced_pods_are_those_of_before_the_failure():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("replace_pods"))
    assert sorted(ref.name for ref in plan.delete) == ["worker-0", "worker-1"]
    assert all(ref.uid for ref in plan.delete)

    fresh = [PODS[0], pod("new-0", names.WORKER, age=-5), pod("new-1", names.WORKER, age=-5)]
    done = plan_for(cluster=ray_cluster(), pods=fresh, **recovering("replace_pods"))
    assert done.delete == ()
    assert done.status is not None
    assert done.status.attempt == 2


def test_a_rebuilt_cluster_is_deleted_by_uid_waited_for_and_made_again():
    gone = plan_for(cluster=ray_cluster(), pods=PODS, **recovering("rebuild_cluster"))
    assert (gone.delete, gone.create) == ((CLUSTER,), ())

    waiting = plan_for(cluster=ray_cluster(deleting=True), pods=PODS, **recovering("rebuild_cluster"))
    assert (waiting.delete, waiting.create) == ((), ())

    made = plan_for(**recovering("rebuild_cluster"))
    assert [each["kind"] for each in made.create] == ["Secret", "RayCluster"]

    new = ray_cluster(uid="cc-2")
    started = plan_for(cluster=new, pods=PODS, **recovering("rebuild_cluster"))
    assert started.delete == ()
    assert started.status is not None
    assert started.status.driver is not None
    assert (started.status.attempt, started.status.driver.cluster_uid) == (2, "cc-2")


def test_a_head_that_is_lost_while_pods_are_replaced_means_another_cluster():
    plan = plan_for(cluster=ray_cluster(-1), pods=PODS[1:], **recovering("restart_driver"))

    assert plan.status is not None
    assert plan.status.recovery.action == "rebuild_cluster"


def test_a_new_cluster_waits_for_the_pods_of_the_old_one_which_kuberay_would_adopt():
    plan = plan_for(pods=PODS, **recovering("rebuild_cluster"))

    assert plan.create == ()
    assert conditions(plan.status)["Ready"] == ("False", "ClusterDeleting")


# ---- suspend, deadline, end


def test_a_job_that_is_resumed_while_its_cluster_goes_has_lost_nothing():
    driver = attempted("Submitted")["driver"].model_copy(update={"stop_requested": NOW})
    plan = plan_for(**living(cluster=None, pods=[], head=None, driver=driver))

    assert plan.status is not None
    assert plan.status.restarts == 0
    assert conditions(plan.status)["Ready"] == ("False", "StoppedOnRequest")


def test_suspending_asks_for_a_checkpoint_waits_and_gives_everything_back():
    base = job(suspend=True)

    asked = plan_for(base=base, **living())
    assert asked.stop is True
    assert asked.delete == ()
    assert phase(asked) == "Suspending"
    assert asked.status is not None
    assert asked.status.driver is not None
    assert asked.status.driver.stop_requested == NOW

    told = asked.status.driver
    saving = plan_for(base=base, **living(driver=told, seconds=60))
    assert (saving.stop, saving.delete, phase(saving)) == (False, (), "Suspending")

    stopped = plan_for(base=base, **ended(76, "StoppedOnRequest", driver=told, seconds=60))
    assert stopped.delete == (CLUSTER,)

    late = plan_for(base=base, **living(driver=told, seconds=121))
    assert late.delete == (CLUSTER,), "recovery.evictionGracePeriod has passed"

    done = plan_for(base=base, **attempted("Submitted", driver=told))
    assert phase(done) == "Suspended"
    assert conditions(done.status)["Suspended"] == ("True", "Suspended")
    assert done.status is not None
    assert done.status.restarts == 0


def test_a_cluster_of_an_older_spec_is_given_back_before_the_job_goes_on():
    older = ray_cluster(made_for=job(cluster={"nodes": 3, "gpusPerNode": 4}).spec)

    asked = plan_for(**living(cluster=older))
    assert (asked.stop, phase(asked)) == (True, "Suspending")
    assert asked.status is not None
    told = asked.status.driver
    stopped = ExitRecord(code=76, reason="StoppedOnRequest", message="saved")
    back = plan_for(**living(cluster=older, driver=told, head=reports(RayJobState.FAILED, exit=stopped)))
    assert back.delete == (CLUSTER,)
    again = plan_for(**living(cluster=None, pods=[], head=None, driver=told))
    assert (phase(again), again.status and again.status.restarts) == ("Recovering", 0)


def test_what_may_change_while_a_job_runs_leaves_its_cluster_alone():
    now = job(training={"steps": 200, "loggers": ["console"]}, checkpoint={"everySteps": 7}, ttlAfterFinished="1h")

    assert phase(plan_for(base=now, **living(cluster=ray_cluster(made_for=job().spec)))) == "Running"


def test_a_job_that_finishes_while_it_is_being_suspended_has_succeeded():
    assert phase(plan_for(base=job(suspend=True), **ended(0, "Completed"))) == "Succeeded"


def test_a_job_that_is_born_suspended_makes_nothing_but_a_status():
    plan = plan_for(base=job(suspend=True))

    assert (plan.create, plan.apply, phase(plan)) == ((), (), "Suspended")


def test_a_resumed_job_starts_again():
    plan = plan_for(**attempted("Ended", phase="Suspended"))

    assert phase(plan) == "Starting"
    assert [each["kind"] for each in plan.create] == ["Secret", "RayCluster"]


def test_a_deadline_stops_with_a_checkpoint_and_fails():
    base, started = job(activeDeadline="1h"), NOW - timedelta(hours=1)

    assert phase(plan_for(base=base, **living(start_time=started + timedelta(seconds=1)))) == "Running"
    asked = plan_for(base=base, **living(start_time=started))
    assert asked.stop is True
    done = plan_for(base=base, **attempted("Submitted", start_time=started))
    assert conditions(done.status)["Failed"] == ("True", "DeadlineExceeded")


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


def test_a_finished_job_that_is_deleted_keeps_saying_how_it_ended():
    plan = decide(deleted(pods=PODS, **finished("Succeeded", "Completed", hours=1) | {"cluster": None}), SETTINGS)

    assert plan.status is None or phase(plan) == "Succeeded"


def test_an_object_that_is_refused_ends_no_job_that_runs():
    running = snapshot(**living())
    plan = refused(running, decide(running, SETTINGS), Invalid("spec.x: no"))

    assert phase(plan) == "Running"
    assert conditions(plan.status)["Ready"][1] == "ObjectForbidden"


def test_a_job_of_another_controller_is_left_alone():
    assert plan_for(base=job(managedBy="example.com/other")) == Plan()
    assert phase(plan_for(base=job(managedBy=names.MANAGER_NAME))) == "Starting"


def test_a_template_of_another_form_fails_at_once_and_names_the_field():
    plan = plan_for(base=job(cluster={"head": {"template": {"spec": "none"}}}))

    assert plan.create == ()
    assert conditions(plan.status)["Failed"] == ("True", "ObjectInvalid")
    assert plan.status is not None
    assert "spec.cluster.head.template.spec" in next(c.message for c in plan.status.conditions if c.type == "Failed")


def test_a_job_without_any_image_says_so_and_waits():
    plan = decide(snapshot(), SETTINGS.model_copy(update={"trainer_image": None}))

    assert plan.create == ()
    assert conditions(plan.status)["Stalled"] == ("True", "ImageMissing")


def test_a_spec_that_this_version_cannot_read_stalls_and_touches_nothing():
    from rljob_operator.job import read_job

    written = manifest(attempted("Submitted")["phase"] and {"phase": "Running"})
    written["spec"]["unheardOf"] = {}
    plan = decide(Snapshot(read_job(written), NOW), SETTINGS)

    assert (plan.delete, plan.apply, plan.create) == ((), (), ())
    assert phase(plan) == "Running"
    assert conditions(plan.status)["Stalled"] == ("True", "SpecNotReadable")


def test_what_an_earlier_job_of_the_name_left_is_waited_for():
    old = ray_cluster()
    old["metadata"]["ownerReferences"][0]["uid"] = "another"
    plan = plan_for(cluster=old)

    assert (plan.create, plan.apply, plan.delete) == ((), (), ())
    assert conditions(plan.status)["Ready"] == ("False", "WaitingForRemoval")


def test_a_child_that_is_there_twice_in_kind_only_is_named_by_the_job():
    plan = plan_for()
    made = [(each["kind"], each["metadata"]["name"]) for each in (*plan.apply, *plan.create)]
    for kind, name in ((CONFIG_MAP, "job-job"), (SECRET, f"job-auth-{UID[:8]}"), (RAY_CLUSTER, "job")):
        assert [each for each in made if each[0] == kind.name] == [(kind.name, name)]
