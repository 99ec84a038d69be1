"""Situations of a job that waits for its pods: why they are not ready, images, servers of reward models."""

from collections.abc import Iterator
from typing import Any

from rljob_operator import names
from rljob_operator.kube.kinds import Manifest
from rljob_operator.plan import Plan
from tests.rljob_operator.decisions import living, plan_for
from tests.rljob_operator.snapshots import (
    NOW,
    PODS,
    REWARDS,
    SERVED,
    attempted,
    deployment,
    job,
    pod,
    ray_cluster,
    server,
    stamp,
)

Rows = Iterator[tuple[str, Plan]]

AGAIN: dict[str, Any] = {"phase": "Recovering"}
ENDED: dict[str, Any] = attempted("Ended", phase="Recovering")
PARTIAL = ray_cluster(1, provisioned=False)
JUST_MADE = ray_cluster(0, provisioned=False)


def up(**given: Any) -> Plan:
    """The cluster is ready, and no driver runs."""
    return plan_for(cluster=ray_cluster(), pods=PODS, **given)


def waiting() -> Rows:
    """For pods."""
    unready = {"type": "Ready", "status": "False"}
    crashed = {
        "name": "ray-head", "ready": False, "restartCount": 2, "state": {"running": {}},
        "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "Traceback\nno port\n"}},
    }  # fmt: skip
    rows: list[tuple[str, Manifest, list[Manifest]]] = [
        ("no pods", JUST_MADE, []),
        ("one worker", PARTIAL, PODS),
        ("no head", _without_head(ray_cluster(provisioned=False)), PODS),
        ("a failed head", ray_cluster(provisioned=False), [pod("head", names.HEAD, "Failed"), *PODS[1:]]),
        ("a late count", ray_cluster(2), [*PODS[:2], pod("worker-1", names.WORKER, "Pending")]),
        ("an unready worker", ray_cluster(2), [*PODS[:2], pod("worker-1", names.WORKER, conditions=[unready])]),
        ("a crashed head", _without_head(JUST_MADE), [pod("h", names.HEAD, containerStatuses=[crashed])]),
        ("no KubeRay", {**JUST_MADE, "status": {}}, []),
        ("no room", JUST_MADE, [_unscheduled("0/3 nodes: 3 Insufficient nvidia.com/gpu")]),
        ("no claim", JUST_MADE, [_unscheduled('persistentvolumeclaim "data" not found')]),
        ("an image", JUST_MADE, [_pulling("ErrImagePull", "EOF")]),
        ("its node", JUST_MADE, [_pulling("ContainerCreating")]),
    ]
    for name, cluster, pods in rows:
        yield f"waiting: {name}", plan_for(cluster=cluster, pods=pods)
    quota = _failing(JUST_MADE, "pods is forbidden: no PriorityClass with name high was found")
    yield "waiting: no priority class", plan_for(cluster=quota)
    yield "waiting again", plan_for(cluster=PARTIAL, **AGAIN)
    invalid = _failing(JUST_MADE, 'FailedCreateHeadPod Pod "job-head" is invalid: spec.volumes[3].name: Required')
    yield "an invalid head", plan_for(cluster=invalid)


def _without_head(cluster: Manifest) -> Manifest:
    cluster = {**cluster, "status": dict(cluster["status"])}
    head = {"type": "HeadPodReady", "status": "False", "reason": "x"}
    cluster["status"]["conditions"] = [head, *cluster["status"]["conditions"][1:]]
    return cluster


def _failing(cluster: Manifest, message: str) -> Manifest:
    said = {"type": "ReplicaFailure", "status": "True", "reason": "x", "message": message}
    return {**cluster, "status": {**cluster["status"], "conditions": [*cluster["status"]["conditions"], said]}}


def _unscheduled(message: str) -> Manifest:
    return pod("w", names.WORKER, "Pending", conditions=[
        {"type": "PodScheduled", "status": "False", "message": message}])  # fmt: skip


def _pulling(reason: str, message: str = "", **given: Any) -> Manifest:
    state = {"waiting": {"reason": reason, "message": message}}
    node = None if reason == "ErrImagePull" else "n"
    return pod("w", names.WORKER, "Pending", node=node, containerStatuses=[
        {"name": "ray-worker", "image": "reg/x:1", "state": state}], **given)  # fmt: skip


def images() -> Rows:
    gone = _pulling("ImagePullBackOff", "not found")
    left = {**gone, "metadata": {**gone["metadata"], "deletionTimestamp": stamp(NOW)}}
    late = {"cluster": ray_cluster(0), "pods": [PODS[0], gone]}
    partial = {"cluster": PARTIAL, "pods": [*PODS[:2], gone]}
    rows: list[tuple[str, dict[str, Any]]] = [
        ("of a new job", partial), ("of a pod that leaves", partial | {"pods": [*PODS[:2], left]}),
        ("after all pods were ready", partial | {"cluster": ray_cluster(1)}), ("after an attempt here", late | ENDED),
        ("of workers that a quota admitted late", late),
        ("beside a driver", living(**partial | {"cluster": ray_cluster(1)})),
        ("after an attempt elsewhere", partial | ENDED), ("of an older cluster", {"pods": [gone]}),
        ("of a resumed job", {"cluster": PARTIAL, "pods": [gone]} | attempted("Ended", phase="Starting")),
        ("at the first try", {"cluster": PARTIAL, "pods": [_pulling("ErrImagePull", "401 Unauthorized")]}),
        ("at the first try, begun", {"cluster": PARTIAL, "pods": [_pulling("ErrImagePull", "denied")], "attempt": 1}),
    ]  # fmt: skip
    for name, given in rows:
        yield f"an image {name}", plan_for(**given)
    pulls = (
        "pull access denied, repository does not exist", "reg/x:1: manifest unknown", "403 Forbidden",
        "failed to extract layer sha256:a: content digest sha256:a: not found",
        "mkdir /var/lib/containerd/tmpmounts: permission denied", "dial tcp: lookup reg: no such host",
    )  # fmt: skip
    for message in pulls:
        yield (
            f"ImagePullBackOff: {message}",
            plan_for(cluster=PARTIAL, pods=[*PODS[:2], _pulling("ImagePullBackOff", message)]),
        )


def servers() -> Rows:
    base, unpulled = job(rewards=REWARDS), {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    crashed = {
        "name": "vllm", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": {"reason": "Error", "exitCode": 1, "message": "...\nno rm\n"}},
    }  # fmt: skip
    no_image = server("rm", containerStatuses=[{"name": "vllm", "image": "vllm:9", "state": unpulled}])
    quota = deployment(
        "rm", 0, conditions=[{"type": "ReplicaFailure", "status": "True", "reason": "x", "message": "quota"}]
    )
    rows: list[tuple[str, list[Manifest], list[Manifest]]] = [
        ("none", [], []),
        ("one", [deployment("rm", 1), SERVED[1]], []),
        ("of an older spec", [deployment("rm", 2, generation=2), SERVED[1]], []),
        ("of an older template", [deployment("rm", 2, updatedReplicas=1), SERVED[1]], []),
        ("a crash", [deployment("rm", 0), SERVED[1]], [server("rm", containerStatuses=[crashed])]),
        ("a quota", [quota], []),
        ("all", SERVED, []),
    ]
    for name, models, pods in rows:
        yield (
            f"servers: {name}",
            up(base=base, models=models)
            if not pods
            else plan_for(base=base, cluster=ray_cluster(), pods=[*PODS, *pods], models=models),
        )
    lost: dict[str, Any] = {"base": base, "models": [deployment("rm", 0), SERVED[1]], "pods": [*PODS, no_image]}
    yield "servers: lost beside a driver", plan_for(**living(**lost))
    yield "servers: lost before the next attempt", up(base=base, models=SERVED[:1], **ENDED)
    yield "servers: no image", plan_for(cluster=PARTIAL, **lost)
    yield "servers: no image, begun", plan_for(cluster=ray_cluster(), **lost, **ENDED)
    model = {**REWARDS["models"][0], "template": {"spec": {"containers": [{"name": "vllm", "env": "x"}]}}}
    yield "servers: a template", plan_for(base=job(rewards={"models": [model]}))
    yield "servers: a template, begun", plan_for(**living(base=job(rewards={"models": [model]})))


WAITING = (waiting, images, servers)
