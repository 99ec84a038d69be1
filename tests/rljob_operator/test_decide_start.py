"""What is decided on the way up, from a new job to one that runs: tables over snapshots."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.v1alpha1 import CheckpointStatus, Progress
from rljob_operator import names
from rljob_operator.decide.recovering import WAIT_SECONDS
from rljob_operator.head import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.kube.kinds import RAY_CLUSTER, VOLUME_CLAIM
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import SECRET_SECONDS, Plan
from rljob_operator.render import eviction
from tests.rljob_operator.decisions import decide, ended, living, not_taken, phase, plan_for
from tests.rljob_operator.snapshots import (
    CLAIM,
    CLUSTER_UID,
    NOW,
    PODS,
    REWARDS,
    SETTINGS,
    UID,
    attempted,
    conditions,
    job,
    pod,
    ray_cluster,
    reports,
    snapshot,
    stamp,
)


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


@pytest.mark.parametrize(("rewards", "gpus"), [(None, 8), (REWARDS, 11)])
def test_a_job_says_how_many_gpus_it_asks_for(rewards, gpus):
    plan = plan_for(base=job(**({} if rewards is None else {"rewards": rewards})))

    assert plan.status is not None
    assert plan.status.gpus == gpus


def without_head(cluster):
    """Whose head is not ready."""
    status = cluster["status"]
    conditions = [
        each | {"status": "False"} if each["type"] == "HeadPodReady" else each for each in status["conditions"]
    ]
    return {**cluster, "status": {**status, "conditions": conditions}}


UNREADY = {"type": "Ready", "status": "False"}
CRASHED = {
    "name": "ray-head", "ready": False, "restartCount": 2, "state": {"running": {}},
    "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "Traceback\nno port\n"}},
}  # fmt: skip
"""A container that runs again."""


@pytest.mark.parametrize(
    ("cluster", "pods", "words"),
    [
        (ray_cluster(0, provisioned=False), [], "0 of 2 workers ready"),
        (ray_cluster(1, provisioned=False), PODS, "1 of 2 workers ready"),
        (without_head(ray_cluster(2, provisioned=False)), PODS, "2 of 2 workers ready, but not the head"),
        # which KubeRay has not told, as while it is away itself
        (
            ray_cluster(2, provisioned=False), [pod("head", names.HEAD, "Failed"), *PODS[1:]],
            "2 of 2 workers ready, but not the head",
        ),
        (
            ray_cluster(0) | {"spec": {"suspend": True, "workerGroupSpecs": [{"replicas": 2}]}}, [],
            "0 of 2 workers ready; somebody set spec.suspend of RayCluster job, so KubeRay makes no pods: set it",
        ),
        (
            ray_cluster(2) | {"spec": {"workerGroupSpecs": [{"replicas": 3}]}}, [*PODS, pod("worker-2", names.WORKER)],
            "2 of 2 workers ready; somebody set the worker replicas of RayCluster job to 3: set them to 2 there",
        ),
        # KubeRay's count is late, and that of the pods which these replace
        (ray_cluster(2), [*PODS[:2], pod("worker-1", names.WORKER, "Pending")], "1 of 2 workers ready"),
        (ray_cluster(2), [*PODS[:2], pod("worker-1", names.WORKER, conditions=[UNREADY])], "1 of 2 workers ready"),
        (without_head(ray_cluster(0, provisioned=False)), PODS, "0 of 2 workers ready, and the head is not"),
        (
            without_head(ray_cluster(0, provisioned=False)),
            [pod("h", names.HEAD, containerStatuses=[CRASHED, CRASHED | {"name": "agent", "ready": True}])],
            "and the head is not; h: ray-head is not ready, after 2 restarts: Error with code 1: no port",
        ),
        (
            {**ray_cluster(0, provisioned=False), "status": {}}, [],
            "0 of 2 workers ready; KubeRay has said nothing of RayCluster job yet: see that one's events",
        ),
        (
            ray_cluster(0, provisioned=False),
            [pod("w", names.WORKER, "Pending", conditions=[
                {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient nvidia.com/gpu"}])],
            "w is not scheduled: 0/3 nodes: 3 Insufficient nvidia.com/gpu",
        ),
        (
            ray_cluster(0, provisioned=False),
            [pod("w", names.WORKER, "Pending") | {"spec": {"schedulerName": "mine"}}],
            "w waits for scheduler mine, which has said nothing of it: does that run?",
        ),
        (
            ray_cluster(0, provisioned=False),
            [pod("w", names.WORKER, "Pending", containerStatuses=[
                {"name": "ray-worker", "state": {"waiting": {"reason": "ErrImagePull", "message": "EOF"}}}])],
            "w: ErrImagePull: EOF",
        ),
        (
            ray_cluster(0, provisioned=False),
            [pod("w", names.WORKER, "Pending", node="n", containerStatuses=[
                {"name": "ray-worker", "state": {"waiting": {"reason": "ContainerCreating"}}}])],
            "0 of 2 workers ready; w waits for its image, or for what it mounts: its events say for what",
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
    assert plan.status.driver.generation == 3
    assert plan.again_in == 0.0


def test_events_come_in_the_order_in_which_it_happens():
    saved = CheckpointStatus(step=20, path="p", time=NOW)
    for given, told in (
        ({"cluster": ray_cluster(), "pods": PODS}, ["AllPodsReady", "AttemptStarting"]),
        (living(head=reports(checkpoint=saved)), ["AllPodsReady", "DriverRunning", "CheckpointSaved"]),
        (ended(0, "Done"), ["AllPodsReady", "Completed"]),
        (ended(75, "RankLost"), ["AllPodsReady", "RankLost"]),
        (ended(65, "Data"), ["AllPodsReady", "Data"]),
        ({"base": job(suspend=True)}, ["Suspended"]),
    ):  # fmt: skip
        assert [event.reason for event in plan_for(**given).events] == told


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


def test_a_reserved_attempt_that_has_begun_is_lost_where_ray_does_not_know_it():
    """Whoever submitted it died before the status said so, and Ray's container was restarted meanwhile."""
    plan = plan_for(cluster=ray_cluster(), pods=PODS, head=HeadReport(begun=True), **attempted("Reserved"))

    assert (plan.submit, plan.restart, phase(plan)) == (None, "RayLost", "Recovering")


def test_a_reserved_attempt_is_not_submitted_while_nobody_says_whether_it_has_begun():
    plan = plan_for(cluster=ray_cluster(), pods=PODS, head=HeadReport(agent=False), **attempted("Reserved"))

    assert (plan.submit, plan.restart, plan.again_in) == (None, None, SETTINGS.poll_seconds)
    assert conditions(plan.status)["Ready"] == ("False", "StartingDriver")


def test_a_driver_runs_once_ray_says_so_or_it_gives_a_sign_of_life():
    """Ray has it before: its environment may take long to set up, or never be."""
    pending = HeadReport(RayJob(RayJobState.PENDING))
    for before, then in (("Starting", "Starting"), ("Recovering", "Recovering"), ("Suspending", "Starting")):
        for state in ("Reserved", "Submitted"):
            given = living(head=pending, **attempted(state)) | {"phase": before}
            plan = plan_for(**given)
            assert (phase(plan), conditions(plan.status)["Ready"]) == (then, ("False", "StartingDriver"))
            assert plan.status is not None
            assert plan.status.driver is not None
            assert (plan.status.driver.state, plan.status.start_time) == ("Submitted", None)
            assert (plan.submit, plan.again_in) == (None, SETTINGS.poll_seconds)

            late = plan_for(silent=70.0, **given)
            assert (phase(late), conditions(late.status)["Ready"][1]) == (then, "DriverNotHeard")

    for head in (reports(), replace(pending, heartbeat=1)):
        plan = plan_for(**living(head=head) | {"phase": "Starting"})
        assert phase(plan) == "Running"
        assert plan.status is not None
        assert plan.status.start_time == NOW


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


@pytest.mark.parametrize(("read", "said"), [(None, False), (2, True), (3, False)])
def test_a_driver_that_has_read_an_older_spec_is_said_to_have(read, said):
    driver = attempted("Submitted")["driver"].model_copy(update={"generation": read})
    plan = plan_for(**living(driver=driver))

    assert plan.status is not None
    (ready,) = (each for each in plan.status.conditions if each.type == "Ready")
    assert ("it read generation 2 of the spec" in ready.message) == said


@pytest.mark.parametrize(("noted", "said"), [(None, False), (eviction(job().spec), False), ("nodeLostAfter 5s", True)])
def test_what_pods_were_made_with_and_keep_is_said_where_the_spec_says_otherwise(noted, said):
    cluster = ray_cluster()
    cluster["metadata"]["annotations"] |= {} if noted is None else {names.EVICTION_ANNOTATION: noted}
    plan = plan_for(**living(cluster=cluster))

    assert plan.status is not None
    (ready,) = (each for each in plan.status.conditions if each.type == "Ready")
    assert (f"its pods keep what they were made with: {noted}" in ready.message) == said


def test_a_checkpoint_is_available_until_the_agent_says_that_there_is_none():
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    known = plan_for(**living(head=reports(checkpoint=saved))).status
    assert known is not None
    for head, told in ((reports(), ("True", "Saved")), (reports(empty=True), ("False", "Lost"))):
        status = known
        for _ in range(2):
            seen = snapshot(replace(job(), status=status), cluster=ray_cluster(), pods=PODS, head=head)
            status = decide(seen, SETTINGS).status or status
            assert conditions(status)["CheckpointAvailable"] == told
            assert (status.checkpoint is None) == (told[1] == "Lost")


GOING = {"metadata": {**CLAIM["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
GOES = "of step 20; job-checkpoints is being deleted, and goes with the last pod that uses it"
LOST = "that of step 20 is lost: job-checkpoints was deleted"


@pytest.mark.parametrize(
    ("claim", "existing", "told"),
    [
        (CLAIM, None, ("True", "Saved", "of step 20")),
        (GOING, None, ("True", "Saved", GOES)),
        (None, "theirs", ("True", "Saved", "of step 20")),
        (None, None, ("False", "Lost", LOST)),
    ],
    ids=["it is there", "it is being deleted", "somebody else's", "it is gone"],
)  # fmt: skip
def test_a_checkpoint_goes_with_the_claim_that_was_made_for_it(claim, existing, told):
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    base = job(suspend=True, checkpoint={"volume": {"existingClaim": existing}} if existing else {})
    children = {} if claim is None else {VOLUME_CLAIM: {"job-checkpoints": claim}}
    plan = decide(replace(snapshot(base, checkpoint=saved), children=children), SETTINGS)
    assert plan.status is not None
    (said,) = (each for each in plan.status.conditions if each.type == "CheckpointAvailable")
    assert (said.status, said.reason, said.message) == told
    warned = [event.message for event in plan.events if event.reason == "CheckpointLost"]
    assert warned == ([LOST] if told[1] == "Lost" else [])
    if told[1] == "Lost":  # and stays so on the claim that is made next
        next_claim = {VOLUME_CLAIM: {"job-checkpoints": CLAIM}}
        again = decide(replace(snapshot(replace(base, status=plan.status)), children=next_claim), SETTINGS)
        assert again.status is None or again.status.conditions == plan.status.conditions


@pytest.mark.parametrize("volume", [{}, {"existingClaim": "theirs"}])
def test_a_volume_that_has_none_any_more_is_not_called_deleted(volume):
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    plan = plan_for(base=job(checkpoint={"volume": volume}), **living(head=reports(empty=True), checkpoint=saved))
    assert [each.message for each in plan.events if each.reason == "CheckpointLost"] == [
        "that of step 20 is lost: its volume has none any more"
    ]


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


def test_a_driver_whose_job_is_not_written_anew_is_not_asked_to_wait_for_it():
    """The spec has a field that only a newer operator knows, so its ConfigMap stays as it is."""
    seen = snapshot(base=replace(job(), unread="spec.new: not known"), **living(driver=None))
    plan = decide(seen, SETTINGS)
    assert (plan.apply, plan.status and plan.status.attempt) == ((), 2)
    assert plan.status is not None
    assert plan.status.driver is not None
    assert plan.status.driver.generation is None


def test_a_driver_that_ray_does_not_take_is_asked_for_again_and_ray_s_words_are_said():
    seen = snapshot(**living(head=HeadReport()) | attempted("Reserved"))
    plan = decide(seen, SETTINGS)
    assert plan.submit is not None
    said = not_taken(seen, plan, "answered 500: No available agent")
    assert said.submit is None
    assert said.status is not None
    ready = next(each for each in said.status.conditions if each.type == "Ready")
    assert (ready.reason, ready.message) == (
        "StartingDriver", "Ray does not take the driver, and is asked again: answered 500: No available agent",
    )  # fmt: skip
    again = replace(seen, job=replace(seen.job, status=said.status))
    assert decide(again, SETTINGS).submit is not None
    assert not_taken(again, plan, "answered 500: No available agent") == Plan(), "it is said once"


def test_pods_that_have_a_node_and_do_not_start_may_lack_the_secret_that_nobody_may_read():
    placed, unplaced = pod("w", names.WORKER, "Pending", node="n1"), pod("w", names.WORKER, "Pending")
    for pods, kind in (([*PODS[:2], placed], "Secret"), ([*PODS[:2], unplaced], None), (PODS[:2], None)):
        plan = plan_for(cluster=ray_cluster(1), pods=pods)
        assert (plan.secret and plan.secret["kind"]) == kind
        assert plan.again_in == (SECRET_SECONDS if kind else None)
        assert plan.written is not None, "it takes nothing from what is said"


def test_a_pod_more_is_told_with_the_next_transition():
    waiting = decide(snapshot(cluster=ray_cluster(0, provisioned=False)), SETTINGS).status
    assert waiting is not None
    base = replace(job(), status=waiting)
    assert plan_for(base=base, cluster=ray_cluster(1, provisioned=False), written=NOW).status is None

    plan = plan_for(base=base, cluster=ray_cluster(), pods=PODS, written=NOW)
    assert plan.status is not None
    assert plan.status.attempt == 1
    assert plan.status.cluster is not None
    assert plan.status.cluster.ready_workers == 2


def _rest(of: Snapshot) -> tuple[Any, ...]:
    return of.children, of.pods, of.head


def test_a_checkpoint_that_went_with_the_cluster_is_told_before_there_is_another_volume():
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    seen = replace(snapshot(checkpoint=saved, **attempted("Ended", phase="Recovering")), children={})
    made = decide(seen, SETTINGS)
    assert [each["kind"] for each in made.create] == ["Secret", "RayCluster"]
    assert "PersistentVolumeClaim" not in {each["kind"] for each in made.apply}, "which would hide the loss"
    told = decide(replace(seen, children={RAY_CLUSTER: {"job": ray_cluster(0, provisioned=False)}}), SETTINGS)
    assert "CheckpointLost" in {event.reason for event in told.events}
    assert told.written is not None
    after = decide(replace(seen, job=replace(seen.job, status=told.written)), SETTINGS)
    assert "PersistentVolumeClaim" in {each["kind"] for each in after.apply}


def test_a_checkpoint_that_a_job_does_not_go_on_from_is_not_lost():
    saved = CheckpointStatus(step=20, path="/checkpoints/checkpoints/step-20-a1", time=NOW)
    plan = plan_for(base=job(checkpoint={"resume": "never"}), **living(head=reports(empty=True), checkpoint=saved))
    assert "CheckpointLost" not in {event.reason for event in plan.events}
    assert conditions(plan.status)["CheckpointAvailable"] == ("False", "NoneYet")
