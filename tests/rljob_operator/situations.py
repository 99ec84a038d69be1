"""Representative situations of a job, by name, and what is decided in each.

`golden_messages.txt` has what each says and does: `python -m tests.rljob_operator.golden` writes it.
"""

from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

from rljob_api.conditions import Aspect
from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus, Condition, Progress, RecoveryStatus
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job, read_job
from rljob_operator.kube.errors import AlreadyExists, Forbidden, Invalid, KubeError, NotFound, Unavailable
from rljob_operator.kube.kinds import VOLUME_CLAIM, Manifest
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.plan import Plan
from tests.rljob_operator import fabrics, gangs, lives, queues
from tests.rljob_operator.decisions import (
    broken,
    decide,
    deleted,
    ended,
    finished,
    forgotten,
    leaving_head,
    living,
    not_taken,
    plan_for,
    recovering,
    refused,
    restarted,
)
from tests.rljob_operator.pod_situations import AGAIN, ENDED, WAITING, Rows, up
from tests.rljob_operator.snapshots import (
    CLAIM,
    NOW,
    PODS,
    REWARDS,
    SETTINGS,
    attempted,
    job,
    manifest,
    pod,
    ray_cluster,
    reports,
    snapshot,
    stamp,
)

RESERVED: dict[str, Any] = living(head=None) | attempted("Reserved")
HEADLESS = ray_cluster(-1)
SAVED = CheckpointStatus(step=20, path="p", time=NOW)
KILLED = HeadReport(RayJob(RayJobState.FAILED, "killed", driver_exit_code=137))
UNREAD = HeadReport(RayJob(RayJobState.FAILED, "killed", driver_exit_code=66), agent=False)
FULL = """Job entrypoint command failed with exit code 79, last available logs (truncated to 20,000 chars):
{"event": "attempt_ended", "code": 79, "message": "no space left for the checkpoint of step 4"}
"""
MET = """Job entrypoint command failed with exit code 77, last available logs (truncated to 20,000 chars):
error: attempt 1 is taken: the driver that started at 2026-11-22 runs or ran it
"""


@cache
def situations() -> dict[str, Plan]:
    groups = (
        starting, *WAITING, heard, failing, recovery, stopping, over, refusals, checkpoints, *lives.GROUPS,
        *queues.GROUPS, *fabrics.GROUPS, *gangs.GROUPS,
    )  # fmt: skip
    return {name: plan for group in groups for name, plan in group()}


def starting() -> Rows:
    outdated = living(cluster=ray_cluster())
    outdated["driver"] = outdated["driver"].model_copy(update={"generation": 2})
    kept = ray_cluster()
    kept["metadata"]["annotations"][names.EVICTION_ANNOTATION] = "nodeLostAfter 5s"
    yield "new", plan_for()
    yield "new, with reward models", plan_for(base=job(rewards=REWARDS))
    own = SETTINGS.model_copy(update={"operator_namespace": "team", "protect_own_namespace": True})
    yield "the operator's namespace", decide(snapshot(), own)
    yield "no image", decide(snapshot(), SETTINGS.model_copy(update={"trainer_image": None}))
    yield "an earlier job's cluster", plan_for(cluster=_of_another())
    yield "the previous cluster is being deleted", plan_for(cluster=ray_cluster(deleting=True))
    yield "the previous cluster's pods", plan_for(pods=PODS, **recovering("rebuild_cluster"))
    yield "the cluster is ready", up()
    yield "the cluster is ready again", up(**AGAIN)
    yield "reserved, not begun", plan_for(**living(head=HeadReport()) | attempted("Reserved"))
    yield "reserved, begun and lost", plan_for(**living(head=HeadReport(begun=True)) | attempted("Reserved"))
    yield "reserved, unconfirmed", plan_for(**living(head=HeadReport(agent=False)) | attempted("Reserved"))
    yield "reserved, and Ray has it", plan_for(**living() | attempted("Reserved"))
    yield "pending", plan_for(**living(head=HeadReport(RayJob(RayJobState.PENDING)), phase="Starting"))
    yield "running", plan_for(**living(head=reports(checkpoint=SAVED)))
    yield "running on an older spec", plan_for(**outdated)
    yield "running in pods of older settings", plan_for(**living(cluster=kept))
    yield "running beside a lost worker", plan_for(**living(cluster=ray_cluster(1), head=reports(heartbeat=1)))
    yield "a spec that cannot be read", decide(Snapshot(_unreadable(), NOW))
    yield "a field of a newer API", plan_for(base=replace(job(), unread="spec.new: not known"))
    bad = {"head": {"template": {"spec": {"containers": [{"name": "agent", "env": "none"}]}}}}
    yield "a template that cannot be merged", plan_for(base=job(cluster=bad))
    yield "a template that cannot be merged, begun", plan_for(base=job(cluster=bad), start_time=NOW, **ENDED)


def _of_another() -> Manifest:
    cluster = ray_cluster()
    cluster["metadata"]["ownerReferences"][0]["uid"] = "another"
    return cluster


def _unreadable() -> Job:
    written = manifest()
    written["spec"]["suspend"] = "perhaps"
    return read_job(written)


def heard() -> Rows:
    """And not."""
    differs = Progress(step=3, engine_difference=0.5, engine_tolerance=0.001)
    yield "an engine that differs", plan_for(**living(head=reports(progress=differs)))
    rows: list[tuple[str, dict[str, Any], float]] = [
        ("a head that does not answer for a moment", living(head=None), 60.0),
        ("a head that does not answer for a minute", living(head=None), 70.0),
        ("a head that does not answer in a ready pod", living(head=None), 9_999.0),
        ("a head that does not answer in a pod that is not ready", living(head=None, cluster=HEADLESS), 601.0),
        ("a head that has not answered this operator", living(head=None, phase="Recovering"), 0.0),
        ("a head that does not answer, and a lost worker", living(head=None, cluster=ray_cluster(1)), 601.0),
        ("a head that does not answer before the submission", RESERVED, 0.0),
        ("an agent alone", living(head=reports(agent=False)), 9_999.0),
        ("a driver that has not begun at once", living(), 60.0),
        ("a driver that has not begun within a minute", living(), 70.0),
        ("a driver that has not begun, starting", living(phase="Starting"), 70.0),
        ("a driver that has not begun within ten minutes", living(), 601.0),
        ("a driver that Ray does not end", living(), 1201.0),
        ("a driver that hangs", living(head=reports(heartbeat=1)), 100.0),
        ("a driver that failed unread", living(head=UNREAD), 10.0),
        ("a driver that failed unread for a minute", living(head=UNREAD), 61.0),
        ("a driver that failed and is read", living(head=replace(UNREAD, agent=True)), 10.0),
        ("a driver that is done unread", living(head=HeadReport(RayJob(RayJobState.SUCCEEDED), agent=False)), 10.0),
    ]
    for code in (0, 64, 75, 76):
        record = ExitRecord(code=code, reason="Reason", message="words")
        rows.append(
            (f"a driver that hangs after its record of {code}", living(head=reports(heartbeat=5, exit=record)), 70)
        )
    for name, given, silent in rows:
        yield name, plan_for(silent=silent, **given)
    for name, given, silent in (
        ("a head that refuses the token", living(head=None), 0.0),
        ("a head that refuses the token before the submission", RESERVED, 0.0),
        ("a head that refuses the token in a pod that is not ready", living(head=None, cluster=HEADLESS), 601.0),
        ("an agent that refuses the token", living(), 0.0),
        ("an agent that refuses the token for a minute", living(), 70.0),
    ):
        yield name, plan_for(silent=silent, unauthorized=True, **given)


def failing() -> Rows:
    for code, reason in (
        (0, "Completed"), (64, "Job"), (64, "EngineMismatch"),
        (65, "Data"), (66, "Reward"), (66, "EnvironmentFailed"), (70, "Bug"), (75, "RankLost"), (75, "EngineLost"),
        (75, "RewardsLost"), (75, "FabricSlow"), (75, "FabricWrong"), (75, "Infrastructure"),
        (76, "StoppedOnRequest"), (77, "Fenced"), (78, "NoUsableCheckpoint"), (79, "StorageFull"),
        (75, "whatever it likes"), (75, "Backoff"),
    ):  # fmt: skip
        yield f"exit code {code}, {reason}", plan_for(**ended(code, reason))
    infrastructure = ("RankLost", "EngineLost", "RewardsLost", "FabricSlow", "FabricWrong", "Infrastructure")
    given_up = (*((75, reason) for reason in infrastructure), (70, "Bug"))
    restarted_ = (
        (64, "Job"), (64, "EngineMismatch"), (65, "Data"), (66, "Reward"), (66, "EnvironmentFailed"),
        (78, "NoUsableCheckpoint"), (79, "StorageFull"),
    )  # fmt: skip
    for action, ends in (("give_up", given_up), ("restart", restarted_)):
        for code, reason in ends:
            yield f"a rule, {action} after {reason}", plan_for(**ended(code, reason, base=_ruled(reason, action)))
    yield "a rule makes it free", plan_for(**ended(75, "RankLost", base=_ruled("RankLost", "restart_uncharged")))
    yield "the field that is wrong", plan_for(**ended(66, "Reward", "KeyError", "spec.rewards.functions[0]"))
    for name, head in (
        ("done without a record", HeadReport(RayJob(RayJobState.SUCCEEDED))), ("killed", KILLED),
        ("a full volume", HeadReport(RayJob(RayJobState.FAILED, FULL, driver_exit_code=79))),
        ("another run's volume", HeadReport(RayJob(RayJobState.FAILED, MET, driver_exit_code=77))),
        ("forgotten", HeadReport(None)),
    ):  # fmt: skip
        yield f"without a record: {name}", plan_for(**living(head=head))
    yield "killed, and a rule gives up", plan_for(**living(head=KILLED, base=_ruled("DriverLost", "give_up")))
    hung = living(head=reports(heartbeat=1), base=_ruled("DriverHung", "give_up"))
    yield "hung, and a rule gives up", plan_for(silent=100.0, **hung)
    yield "forgotten, and a rule gives up", plan_for(**living(head=HeadReport(None), base=_ruled("RayLost", "give_up")))
    for code, reason in ((0, "Completed"), (66, "Reward"), (75, "RankLost")):
        yield f"forgotten after {reason}", plan_for(**forgotten(code, reason))
    for name, given in (
        ("its cluster is gone", {"cluster": None, "pods": []}),
        ("its cluster is another", {"cluster": ray_cluster(uid="c")}),
        ("its head pod is gone", {"cluster": HEADLESS, "pods": PODS[1:]}),
        ("its head pod failed", {"cluster": HEADLESS, "pods": [pod("head", names.HEAD, "Failed"), *PODS[1:]]}),
        ("its head pod was cleared away", {"pods": [leaving_head("Failed"), *PODS[1:]]}),
        ("its head leaves", {"pods": [leaving_head(), *PODS[1:]]}),
    ):  # fmt: skip
        yield name, plan_for(**living(head=None, **given))
    for ago, reserved in ((400.0, None), (200.0, None), (None, None), (200.0, 100.0), (50.0, 100.0)):
        here = living(cluster=ray_cluster(1), pods=restarted(ago), head=None)
        when = None if reserved is None else NOW - timedelta(seconds=reserved)
        here["driver"] = here["driver"].model_copy(update={"reserved": when})
        yield f"a head that restarted {ago} s ago, and an attempt {reserved} s ago", plan_for(**here)
    lost = {"cluster": ray_cluster(-1, uid="another"), "pods": [pod("head", names.HEAD, "Failed")]}
    yield "a head that is lost before any attempt", plan_for(**lost)
    yield "a head that is lost beside its workers", plan_for(**lost | {"pods": [*lost["pods"], *PODS[1:]]})


def _ruled(reason: str, action: str) -> Job:
    return job(recovery={"rules": [{"onReasons": [reason], "action": action}]})


def recovery() -> Rows:
    for levels in ([], ["driver"] * 2, ["driver", "driver", "pods", "pods"]):
        before = RecoveryStatus(charged=len(levels), cures={level: levels.count(level) for level in levels})
        yield f"after {len(levels)} restarts", plan_for(**ended(75, "RankLost", recovery=before))
    spent = RecoveryStatus(durable_step=10, charged=5, cures={"driver": 2, "pods": 2, "cluster": 1})
    yield "the budget is spent", plan_for(**ended(75, "RankLost", recovery=spent))
    renewed = ended(75, "RankLost", recovery=spent, restarts=5)
    renewed["head"] = replace(renewed["head"], checkpoint=SAVED)
    yield "a new checkpoint renews it", plan_for(**renewed)
    yield "a second bug", plan_for(**ended(70, "Bug", recovery=RecoveryStatus(charged=1, bugs=1)))
    for action in ("restart_driver", "replace_pods", "rebuild_cluster"):
        yield f"recovering: {action}", up(**recovering(action))
    yield "recovering: a wait", up(**recovering("restart_driver", wait=4.0))
    brief = attempted("Submitted")["driver"].model_copy(update={"steps": 50})
    yield "more steps", plan_for(**ended(0, "Completed", driver=brief))


def stopping() -> Rows:
    suspended, asked = job(suspend=True), attempted("Submitted")["driver"].model_copy(update={"stop_requested": NOW})
    started = NOW - timedelta(hours=1)
    yield "born suspended", plan_for(base=suspended)
    yield "suspended: asked", plan_for(base=suspended, **living())
    yield "suspended: saving", plan_for(base=suspended, **living(driver=asked, seconds=60))
    yield "suspended: late", plan_for(base=suspended, **living(driver=asked, seconds=121))
    yield "suspended: stopped", plan_for(base=suspended, **ended(76, "StoppedOnRequest", driver=asked))
    yield "suspended: ended unasked", plan_for(base=suspended, **ended(75, "RankLost"))
    yield "suspended: done", plan_for(base=suspended, **ended(0, "Completed"))
    yield "suspended: pods", plan_for(base=suspended, pods=PODS, **attempted("Ended", phase="Suspending"))
    yield "suspended", plan_for(base=suspended, **attempted("Submitted", driver=asked))
    yield "resumed", plan_for(**attempted("Ended", phase="Suspended"))
    yield "resumed before it stopped", plan_for(**living(driver=asked, phase="Suspending"))
    yield "resumed too late", plan_for(**living(driver=asked, phase="Suspending", seconds=121))
    yield "resumed while its cluster went", plan_for(**living(cluster=None, pods=[], head=None, driver=asked))
    older = ray_cluster(made_for=job(cluster={"nodes": 3}).spec)
    yield "an older spec's cluster", plan_for(**living(cluster=older))
    yield "another key's cluster", plan_for(**living(cluster=ray_cluster(key=b"old")))
    yield "another key's cluster: asked", plan_for(**living(cluster=ray_cluster(key=b"old"), driver=asked))
    deadline = job(activeDeadline="1h")
    yield "past the deadline", plan_for(base=deadline, **living(start_time=started))
    yield "past the deadline: stopped", plan_for(base=deadline, **attempted("Submitted", start_time=started))
    leaves = {"pods": [leaving_head(), *PODS[1:]]}
    yield "a head that leaves", plan_for(**living(**leaves))
    yield "a head that leaves: late", plan_for(**living(driver=asked, seconds=121, **leaves))
    reserved = living(head=HeadReport(), **leaves) | attempted("Reserved")
    yield "a head that leaves before the submission", plan_for(**reserved)
    yield "a head that leaves between attempts", plan_for(cluster=ray_cluster(), **leaves, **ENDED)


def over() -> Rows:
    kept = job(ttlAfterFinished="2h")
    cluster: dict[str, Any] = {"cluster": ray_cluster(), "pods": PODS}
    for hours in (1, 2):
        yield f"finished {hours} h ago", plan_for(base=kept, **finished("Succeeded", "Completed", hours) | cluster)
    yield "deleted", decide(deleted(**living()))
    yield "deleted: pods", decide(deleted(pods=PODS))
    yield "deleted: late", decide(deleted(pods=PODS, seconds=SETTINGS.deletion_seconds))
    yield "deleted: gone", decide(deleted())
    others = replace(job(), deleted=NOW, finalizers=("x.y/z",))
    yield "deleted: another's finalizer", decide(snapshot(others))
    yield "deleted: late, and another's finalizer", decide(snapshot(others, **cluster, seconds=300))
    lost = pod("worker-0", names.WORKER, node="n1", conditions=[
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}])  # fmt: skip
    lost["metadata"]["deletionTimestamp"] = stamp(NOW)
    for allowed in (False, True):
        base = job(recovery={"forceDeleteLostPods": allowed})
        yield f"a lost node, deletion {allowed}", plan_for(base=base, pods=[lost], seconds=1, **AGAIN)


def refusals() -> Rows:
    invalid = Invalid('RayCluster.ray.io "job" is invalid: spec.headGroupSpec.template.spec.x: Required value')
    errors: list[tuple[str, KubeError]] = [
        ("invalid", invalid), ("forbidden", Forbidden("exceeded quota")), ("failing", Unavailable("no answer in 10 s")),
        ("no such kind", NotFound("the server could not find the requested resource")),
        ("taken", AlreadyExists("ConfigMap job-job exists")),
        ("an earlier owner", Invalid("metadata.ownerReferences: Only one reference can have Controller")),
    ]  # fmt: skip
    states: list[tuple[str, dict[str, Any]]] = [
        ("new", {}), ("running", living()), ("between attempts", living(start_time=NOW) | ENDED),
        ("deleted", {"base": replace(job(), deleted=NOW), "pods": PODS}),
        ("over", finished("Succeeded", "Completed", 1) | {"cluster": None}),
    ]  # fmt: skip
    for what, error in errors:
        error.asked = "create RayCluster"
        for name, given in states:
            yield f"{what}: {name}", refused(snapshot(**given), Plan(), error)
    for what, given in (
        ("a suspension", {"base": job(suspend=True), **living()}), ("a failure", ended(75, "RankLost")),
        ("the last pod's end", {"base": job(suspend=True), "phase": "Suspending"}),
    ):  # fmt: skip
        seen = snapshot(**given)
        yield f"forbidden: {what}", refused(seen, decide(seen), Forbidden("quota"))
    submitting = snapshot(**living(head=HeadReport()) | attempted("Reserved"))
    yield "a driver that Ray refuses", not_taken(submitting, decide(submitting), "answered 500: no agent")
    ending = snapshot(silent=70.0, **living(head=reports(heartbeat=1)))
    yield "an end that Ray refuses", not_taken(ending, decide(ending), "answered 500: no")
    yield "a bug", broken(snapshot(), KeyError("spec"))
    yield "a bug while it runs", broken(snapshot(**living()), KeyError("spec"))


def checkpoints() -> Rows:
    going = {"metadata": {**CLAIM["metadata"], "deletionTimestamp": stamp(NOW)}}
    theirs = {"checkpoint": {"volume": {"existingClaim": "theirs"}}}
    for name, claim, spec in (
        ("its claim is there", CLAIM, {}), ("its claim is being deleted", going, {}),
        ("its claim is gone", None, {}), ("the claim is the user's", None, theirs),
    ):  # fmt: skip
        seen = snapshot(job(suspend=True, **spec), checkpoint=SAVED)
        children = {} if claim is None else {VOLUME_CLAIM: {"job-checkpoints": claim}}
        yield f"a checkpoint: {name}", decide(replace(seen, children=children))
    had = Condition(type="CheckpointAvailable", status="True", reason=Aspect.SAVED, last_transition_time=NOW)
    empty: dict[str, Any] = living(head=reports(empty=True), checkpoint=SAVED, conditions=[had])
    yield "a checkpoint: the volume is empty", plan_for(**empty)
    yield "a checkpoint: not continued from", plan_for(base=job(checkpoint={"resume": "never"}), **empty)
