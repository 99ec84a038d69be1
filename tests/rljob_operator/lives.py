"""Situations of several looks, each at the status that the look before it wrote; and those beside the usual way."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from rljob_api.contract import ExitRecord
from rljob_api.v1alpha1 import CheckpointStatus, Progress, RecoveryStatus
from rljob_operator import names
from rljob_operator.head.ray_jobs import RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job, read_job
from rljob_operator.kube.errors import Forbidden, Invalid
from rljob_operator.kube.kinds import NETWORK_POLICY, SERVICE, Manifest
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import (
    broken,
    decide,
    deleted,
    ended,
    finished,
    leaving_head,
    living,
    plan_for,
    recovering,
    refused,
    restarted,
)
from tests.rljob_operator.snapshots import (
    CLUSTER_UID,
    NOW,
    PODS,
    REWARDS,
    SERVED,
    UID,
    attempted,
    deployment,
    job,
    manifest,
    pod,
    ray_cluster,
    reports,
    server,
    snapshot,
    stamp,
)

Rows = Iterator[tuple[str, Plan]]
Given = dict[str, Any]

ENDED: Given = attempted("Ended", phase="Recovering")
ASKED = attempted("Submitted")["driver"].model_copy(update={"stop_requested": NOW})
READY: Given = {"cluster": ray_cluster(), "pods": PODS}
HEADLESS: Given = {"cluster": ray_cluster(-1), "pods": PODS[1:]}
LEAVING: Given = {"cluster": ray_cluster(), "pods": [leaving_head(), *PODS[1:]]}
SAVED = CheckpointStatus(step=20, path="p", time=NOW)
FRESH = [PODS[0], pod("new-0", names.WORKER, age=0), pod("new-1", names.WORKER, age=-5)]
STOPPED = ExitRecord(code=76, reason="StoppedOnRequest", message="words")


def lived(name: str, *looks: Given) -> Rows:
    """looks: fields of a snapshot; those of the status count for the first alone."""
    status = None
    for number, given in enumerate(looks, start=1):
        seen = snapshot(**given)
        seen = seen if status is None else replace(seen, job=replace(seen.job, status=status))
        plan = decide(seen)
        status = plan.status or seen.job.status
        yield f"{name}: look {number}", plan


def progress_in_a_status() -> Rows:
    """What is no transition may wait a little."""
    first = snapshot(**living())
    status = decide(first).status
    assert status is not None
    for name, report, ago in (
        ("never written", {}, None), ("written just now", {}, 0.0), ("written a little ago", {}, 12.0),
        ("written long ago", {}, 15.0), ("written by a clock that was set back", {}, -60.0),
        ("written just now, and a new checkpoint", {"checkpoint": SAVED}, 0.0),
    ):  # fmt: skip
        head = reports(progress=Progress(step=25, total_steps=100), **report)
        written = None if ago is None else NOW - timedelta(seconds=ago)
        yield f"progress, {name}", decide(replace(first, job=replace(job(), status=status), head=head,
                                                  status_written=written))  # fmt: skip
    yield from lived(
        "a pod more", {"cluster": ray_cluster(0, provisioned=False)},
        {"cluster": ray_cluster(1, provisioned=False), "written": NOW}, {**READY, "written": NOW},
    )  # fmt: skip
    heads = (reports(checkpoint=SAVED), reports(), reports(), reports(empty=True), reports(empty=True))
    yield from lived("a checkpoint until the agent reports none", *(living(head=head) for head in heads))


def pods_of_clusters() -> Rows:
    """Which pods go, and how."""

    def ending(name: str, seconds: int = 150, **status: Any) -> Manifest:
        found = pod(name, names.WORKER, **status)
        found["metadata"] |= {"deletionTimestamp": stamp(NOW), "deletionGracePeriodSeconds": seconds}
        return found

    evicted = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
    workers = [ending("worker-0"), ending("worker-1")]
    for name, action, given in (
        ("a lost head", "rebuild_cluster", HEADLESS), ("a head that leaves", "rebuild_cluster", LEAVING),
        ("pods that end", "rebuild_cluster", {"pods": workers}),
        ("a pod that ends soon", "rebuild_cluster", {"pods": [workers[0], ending("worker-1", 1)]}),
        ("a pod that stays", "rebuild_cluster", {"pods": [workers[0], PODS[2]]}),
        ("a pod of a lost node", "rebuild_cluster", {"pods": [workers[0], ending("worker-1", conditions=evicted)]}),
        ("the driver alone", "restart_driver", READY), ("pods that end", "restart_driver", {"pods": workers}),
        ("others are there", "replace_pods", {"cluster": ray_cluster(), "pods": FRESH}),
        ("a lost head", "restart_driver", HEADLESS),
    ):  # fmt: skip
        yield f"{action} with {name}", plan_for(**given, **recovering(action))
    late = pod("worker-1", names.WORKER, conditions=evicted)
    late["metadata"]["deletionTimestamp"] = stamp(NOW - timedelta(seconds=1))
    given = {"cluster": ray_cluster(), "pods": [*FRESH, late]}
    yield "replace_pods beside a lost pod", plan_for(**given, **recovering("replace_pods"))
    twice = RecoveryStatus(charged=2, cures={"driver": 2})
    pending = pod("worker-2", names.WORKER, "Pending", age=1)  # KubeRay has missed a pod before us
    old = [*PODS[:2], pod("worker-1", names.WORKER, age=5), pending]
    for ahead in (-60.0, 60.0):
        failed = ended(75, "RankLost", recovery=twice) | {"cluster": ray_cluster(1), "pods": old, "seconds": ahead}
        new = [PODS[0], pending, pod("worker-3", names.WORKER, age=-2)]
        yield from lived(
            f"other pods by a clock {ahead} s ahead", failed, failed | {"seconds": ahead + 1, "head": None},
            {**READY, "pods": new, "seconds": ahead + 5},
        )  # fmt: skip
    not_there = [{"name": "ray-worker", "image": "i:2", "state": {"waiting": {
        "reason": "ImagePullBackOff", "message": "i:2: not found"}}}]  # fmt: skip
    for owner in ("another", CLUSTER_UID):
        unpulled = pod("worker-1", names.WORKER, "Pending", containerStatuses=not_there)
        unpulled["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True, "kind": "RayCluster"}]
        given = {"cluster": ray_cluster(1, provisioned=False), "pods": [*PODS[:2], unpulled]}
        yield f"no image of a pod that {owner} owns", plan_for(**given)
    going = {"start_time": NOW, "cluster": ray_cluster(1, provisioned=False), "pods": [ending("old")]}
    yield "waiting beside a pod that ends", plan_for(**going)


def waits() -> Rows:
    """Before the next attempt."""
    slow = job(recovery={"backoff": {"initial": "90s", "factor": 1, "max": "2m"}})
    for before, done in ((2, READY | {"pods": FRESH}), (4, {})):
        levels = ["driver", "driver", "pods", "pods"][:before]
        spent = RecoveryStatus(charged=before, cures={level: levels.count(level) for level in levels})
        yield from lived(
            f"a wait after {before} restarts", ended(75, "RankLost", "rank-3 died", recovery=spent, base=slow),
            READY | {"base": slow},
            *(done | {"base": slow, "seconds": each, "written": NOW} for each in (1, 20, 80, 90)),
        )  # fmt: skip
    failed = plan_for(base=slow, **ended(75, "RankLost", recovery=RecoveryStatus(cures={"driver": 1}))).status
    assert failed is not None
    waiting = snapshot(replace(slow, status=failed), written=NOW, **READY)
    for name, plan in (
        ("a bug", broken(waiting, KeyError("spec"))), ("a refusal", refused(waiting, Plan(), Forbidden("quota"))),
    ):  # fmt: skip
        assert plan.status is not None
        yield f"a wait after {name}", decide(replace(waiting, job=replace(slow, status=plan.status)))
    free = {"cluster": ray_cluster(-1, uid="another"), "pods": [pod("head", names.HEAD, "Failed")]}
    for name, status in (("new", {}), ("of a later attempt", attempted("Ended", phase="Starting"))):
        base = job(recovery={"maxRestarts": 0})
        yield from lived(f"a head that is lost before an attempt, {name}", free | {"base": base, **status}, free)
    clusters = ({"cluster": ray_cluster(-1, uid=f"{number}")} for number in range(8))
    yield from lived("one head after the other is lost", *clusters)
    waiting_ = RecoveryStatus(charged=1, action="restart_driver", decided=NOW, not_before=NOW + timedelta(hours=2))
    begun = attempted("Ended", phase="Recovering", start_time=NOW - timedelta(minutes=5), recovery=waiting_)
    timed = {"base": job(activeDeadline="10m"), **begun}
    yield from lived("a deadline in a backoff", timed | READY, timed | READY | {"seconds": 300})
    partial = {"cluster": ray_cluster(1), "pods": PODS[:2]}
    yield from lived("a deadline before pods", timed | partial, timed | partial | {"seconds": 300})


def stops() -> Rows:
    suspended = job(suspend=True)
    head = ended(76, "StoppedOnRequest")["head"]
    for name, then in (
        ("and the driver stops", LEAVING | {"head": head}), ("and is gone", HEADLESS),
        ("and is gone, and the driver stopped", HEADLESS | {"head": head}),
    ):  # fmt: skip
        yield from lived(f"a head leaves {name}", living(**LEAVING), then, HEADLESS)
    for name, then in (("", LEAVING), ("and is gone", HEADLESS)):
        waiting = LEAVING | recovering("restart_driver", wait=4.0)
        yield from lived(f"a head leaves while no driver runs {name}", waiting, then)
    again = restarted(200.0)[0] | {"metadata": leaving_head()["metadata"]}
    yield "a head leaves that restarted before its attempt", plan_for(**living(**LEAVING | {"pods": [again]}))
    silent = living(head=reports(heartbeat=5, exit=STOPPED), phase="Suspending", driver=ASKED)
    for seconds in (60.0, 70.0):
        yield f"a process hangs for {seconds} s in a suspension", plan_for(base=suspended, silent=seconds, **silent)
    yield "a process that Ray does not end", plan_for(silent=666.0, **living(head=reports(heartbeat=5, exit=STOPPED)))
    kept = job(recovery={"maxRestarts": 0}, ttlAfterFinished="24h")
    for name, seconds, heard in (("unreachable", 601.0, None), ("deaf", 1201.0, reports())):
        lost = living(base=kept, head=heard, cluster=ray_cluster(-1), silent=seconds)
        gone = {"base": kept, "cluster": ray_cluster(-1, deleting=True), "pods": PODS}
        yield from lived(f"the end of a job whose driver is {name}", lost, lost | {"head": None, "silent": 0.0}, gone)
    yield from lived("resumed while its driver runs", living(base=suspended), READY | {"head": reports()},
                     {}, living(base=suspended, seconds=7200))  # fmt: skip
    for base in (suspended, job(activeDeadline="1s")):
        headless = living(base=base, **HEADLESS, head=None, start_time=NOW, seconds=60)
        yield from lived(f"a lost head {'of a suspended job' if base is suspended else 'past a deadline'}",
                         headless, headless)  # fmt: skip
    older = ray_cluster(made_for=job(cluster={"nodes": 3, "gpusPerNode": 4}).spec)
    for generation in (3, 2):
        older["metadata"]["annotations"][names.GENERATION_ANNOTATION] = f"{generation}"
        yield f"another spec's cluster of generation {generation}", plan_for(**living(cluster=older))
    now = job(training={"steps": 200, "loggers": ["console"]}, checkpoint={"everySteps": 7}, ttlAfterFinished="1h")
    yield "a spec with what may change", plan_for(base=now, **living(cluster=ray_cluster(made_for=job().spec)))
    brief = attempted("Submitted")["driver"].model_copy(update={"steps": 99})
    for base in (job(), suspended):
        done = ended(0, "Completed", base=base, driver=brief)
        yield from lived(f"more steps than begun with, suspend {base.spec.suspend}", done, READY | {"base": base})
    spent = attempted("Ended", recovery=RecoveryStatus(charged=5), start_time=NOW - timedelta(hours=2))
    timed = {"activeDeadline": "1h"}
    yield from lived("a suspension renews budget and deadline", {"base": job(suspend=True, **timed), **spent},
                     {"base": job(**timed)})  # fmt: skip


def servers_beside() -> Rows:
    base, suspended = job(rewards=REWARDS), job(rewards=REWARDS, suspend=True)
    runs = READY | {"base": base, "head": reports()}
    begun = runs | {"models": SERVED, **attempted("Submitted")}
    lost = runs | {"models": SERVED[:1]}
    yield from lived("servers are lost beside a driver", begun, lost, lost, runs | {"models": SERVED})
    yield "servers of a suspended job: asked", plan_for(**begun | {"base": suspended})
    stopping = attempted("Ended", phase="Suspending") | {"base": suspended}
    yield from lived(
        "servers of a suspended job", READY | stopping | {"models": SERVED}, stopping | {"pods": [server("rm")]},
        stopping,
    )  # fmt: skip
    over = finished("Succeeded", "Completed", hours=1)
    yield "servers of a job that is over", plan_for(**over | READY | {"base": base, "models": SERVED})
    yield from lived("servers of a deleted job", {"base": replace(base, deleted=NOW), "models": SERVED},
                     {"base": replace(base, deleted=NOW)})  # fmt: skip
    old = SERVICE.manifest({"name": "job-rm-old", "namespace": "team", "uid": "u", "ownerReferences": [
        {"uid": UID, "controller": True}]})  # fmt: skip
    seen = snapshot(base, **READY, models=[*SERVED, deployment("old", 1)])
    children = {**seen.children, SERVICE: {"job-rm-old": old}}
    yield "servers that the spec no longer names", decide(replace(seen, children=children))


def of_tomorrow(**spec: Any) -> Job:
    """A newer CRD gave it a field."""
    written = manifest(**spec)
    written["spec"]["training"]["fieldOfTomorrow"] = {"on": True}
    return read_job(written)


def of_other_versions() -> Rows:
    written = manifest()
    written["spec"]["suspend"] = "perhaps"
    for name, given in (
        ("that runs", living(head=None)), ("without a cluster", living(cluster=None, pods=[], head=None)),
        ("with another cluster", living(cluster=ray_cluster(uid="cc-2"), head=None)),
        ("whose cluster is deleted", living(cluster=ray_cluster(deleting=True))),
        ("whose driver failed", living(head=reports(RayJobState.FAILED))),
        ("that Ray forgot", living(head=HeadReport())),
    ):  # fmt: skip
        yield f"unreadable: a job {name}", plan_for(**given | {"base": read_job(written)})
    for name, given, spec in (
        ("that runs", living(), {}), ("whose driver ended", ended(75, "RankLost"), {}),
        ("that is suspended", living(), {"suspend": True}), ("that is new", {}, {}),
        ("that lost its cluster", ENDED, {}),
        ("made by a newer operator", living(cluster=ray_cluster(made_for=job(cluster={"nodes": 3}).spec)), {}),
        ("that starts", living(driver=None), {}),
    ):  # fmt: skip
        yield f"a newer field: a job {name}", plan_for(base=of_tomorrow(**spec), **given)
    brief = attempted("Submitted")["driver"].model_copy(update={"steps": 100})
    done = ended(0, "Completed", base=of_tomorrow(training={"steps": 200}), driver=brief)
    yield "a newer field: more steps", plan_for(**done)
    ended_ = ENDED | {"driver": brief.model_copy(update={"state": "Ended"})}
    yield "a newer field: more steps, ended", plan_for(base=done["base"], **READY, **ended_)
    yield (
        "a newer status",
        plan_for(base=read_job(manifest({"attempt": 3, "phase": "Dreaming"})), cluster=ray_cluster()),
    )
    over = finished("Failed", "Job", hours=1000) | {"cluster": ray_cluster()}
    yield "unreadable: a job that is over", plan_for(base=replace(job(), read=None, problem="spec.x: no"), **over)
    for name, given in (
        ("another controller's job", {"base": job(managedBy="example.com/other")}),
        ("this controller's job by name", {"base": job(managedBy=names.MANAGER_NAME)}),
        ("another release's job", {"operator": "other-system"}),
        ("another release's job that runs", living(operator="other-system")),
        ("another release's job that is deleted", {"base": deleted().job, "operator": "other-system"}),
    ):  # fmt: skip
        yield name, plan_for(**given)


def refused_at_the_end() -> Rows:
    policy = NETWORK_POLICY.manifest({"name": "job", "namespace": "team", "uid": "p"}, spec={})
    over = finished("Failed", "Job", hours=2) | {"cluster": None}
    for name, pods in (("whose pods end", PODS), ("without pods", [])):
        seen = replace(snapshot(pods=pods, **over), children={NETWORK_POLICY: {"job": policy}})
        yield f"the policy of a job {name}", decide(seen)
    for name, given in (("", {}), (" with pods", READY)):
        late = deleted(seconds=300, **attempted("Submitted"), **given)
        yield f"a late deletion{name} that is refused", refused(late, decide(late), Forbidden("a webhook"))
    begun = {"cluster": ray_cluster(1, provisioned=False), "phase": "Starting"}
    for name, given in (("started", begun), ("resumed", begun | attempted("Ended", phase="Starting"))):
        yield f"an invalid object: {name}", refused(snapshot(**given), Plan(), Invalid("spec.x: no"))


GROUPS = (
    progress_in_a_status, pods_of_clusters, waits, stops, servers_beside, of_other_versions, refused_at_the_end,
)  # fmt: skip
