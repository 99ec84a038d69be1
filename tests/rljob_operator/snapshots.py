"""Builders of snapshots: a job in a state of its life, to be changed by each test."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import DriverStatus, RLJobSpec, RLJobStatus
from rljob_operator import names
from rljob_operator.head import tokens
from rljob_operator.head.ray_jobs import RayJob, RayJobState
from rljob_operator.head.report import HeadReport
from rljob_operator.job import Job, read_job
from rljob_operator.kube.kinds import DEPLOYMENT, RAY_CLUSTER, VOLUME_CLAIM, Manifest
from rljob_operator.observe.snapshot import Snapshot
from rljob_operator.render import spec_digest
from rljob_operator.settings import Settings

NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings(key=b"k" * 32, trainer_image="trainer:1")
UID = "0aa1-22bb"
CLUSTER_UID = "cc-1"

SPEC: Mapping[str, Any] = {
    "model": {"path": "m"},
    "data": {"train": ["/data/t.parquet"]},
    "rewards": {"functions": [{"name": "a", "builtin": "gsm8k"}]},
    "cluster": {"nodes": 2, "gpusPerNode": 4},
    "training": {"steps": 100},
}


def stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def manifest(status: Mapping[str, Any] | None = None, /, **spec: Any) -> Manifest:
    """An RLJob as the API server would return it, fields of its spec replaced."""
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {
            "name": "job", "namespace": "team", "uid": UID, "generation": 3, "resourceVersion": "7",
            "finalizers": [names.FINALIZER],
        },
        "spec": with_defaults(structural_schema(RLJobSpec), {**SPEC, **spec}),
        "status": dict(status or {}),
    }  # fmt: skip


CLAIM: Manifest = {
    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
    "metadata": {"name": "job-checkpoints", "namespace": "team", "uid": "uid-claim", "resourceVersion": "5"},
    "spec": {"resources": {"requests": {"storage": "100Gi"}}},
}  # fmt: skip


def job(**spec: Any) -> Job:
    return read_job(manifest(**spec))


def attempted(state: str, **status: Any) -> dict[str, Any]:
    """Changes of the status: attempt 1 is in that state, on the cluster of these builders."""
    driver = DriverStatus(
        submission_id=names.submission(UID, 1), cluster_uid=CLUSTER_UID, state=state, stop_requested=None
    )  # fmt: skip
    return {"attempt": 1, "driver": driver, "phase": "Running" if state == "Submitted" else "Starting", **status}


def snapshot(
    base: Job | None = None, *, cluster: Manifest | None = None, pods: Sequence[Manifest] = (),
    head: HeadReport | None = None, seconds: float = 0.0, models: Sequence[Manifest] = (),
    written: datetime | None = None, silent: float = 0.0, unauthorized: bool = False, **status: Any,
) -> Snapshot:  # fmt: skip
    """seconds: after NOW. models: Deployments. status: fields to replace."""
    base = base or job()
    base = replace(base, status=base.status.model_copy(update=status))
    children = {VOLUME_CLAIM: {"job-checkpoints": CLAIM}}
    if cluster is not None:
        children[RAY_CLUSTER] = {cluster["metadata"]["name"]: cluster}
    if models:
        children[DEPLOYMENT] = {each["metadata"]["name"]: each for each in models}
    return Snapshot(base, NOW + timedelta(seconds=seconds), children, pods, head, written, silent, unauthorized)


def ray_cluster(
    ready: int = 2,
    *,
    provisioned: bool = True,
    uid: str = CLUSTER_UID,
    deleting: bool = False,
    made_for: RLJobSpec | None = None,
    key: bytes = SETTINGS.key,
) -> Manifest:
    """A RayCluster with so many ready workers of two. made_for: None for the spec as it is."""
    since = {"reason": "x", "lastTransitionTime": stamp(NOW - timedelta(seconds=300))}
    conditions = [
        {"type": "HeadPodReady", "status": "True" if ready >= 0 else "False", "reason": "x"},
        {"type": "RayClusterProvisioned", "status": str(provisioned)} | since,
    ]
    metadata = {"name": "job", "namespace": "team", "uid": uid, "generation": 1, "resourceVersion": "9"}
    annotations = {names.KEY_ANNOTATION: tokens.fingerprint(key)}
    annotations |= {} if made_for is None else {names.SPEC_ANNOTATION: spec_digest(made_for)}
    owner = [{"uid": UID, "controller": True, "kind": "RLJob", "name": "job"}]
    metadata |= {"ownerReferences": owner, "annotations": annotations}
    status = {"observedGeneration": 1, "readyWorkerReplicas": max(ready, 0), "desiredWorkerReplicas": 2}
    return RAY_CLUSTER.manifest(
        metadata | ({"deletionTimestamp": stamp(NOW)} if deleting else {}), status=status | {"conditions": conditions}
    )


REWARDS: Mapping[str, Any] = {
    "models": [
        {"name": "rm", "path": "org/rm", "kind": "classifier", "replicas": 2},
        {"name": "judge", "path": "org/chat", "kind": "generative"}
        | {"promptTemplate": "{response}", "scorePattern": "(.)"},
    ]
}


def deployment(model: str, ready: int, *, generation: int = 1, **status: Any) -> Manifest:
    """A reward model's, with so many ready servers of the generation 1."""
    owner = [{"uid": UID, "controller": True, "kind": "RLJob", "name": "job"}]
    metadata = {
        "name": f"job-rm-{model}", "namespace": "team", "uid": f"uid-{model}", "generation": generation,
        "resourceVersion": "11", "ownerReferences": owner, "creationTimestamp": stamp(NOW - timedelta(seconds=700)),
    }  # fmt: skip
    counted = {"observedGeneration": 1, "readyReplicas": ready, "updatedReplicas": ready}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "status": {**counted, **status}}


SERVED = [deployment("rm", 2), deployment("judge", 1)]


def server(model: str, **status: Any) -> Manifest:
    """A pod of a reward model."""
    made = pod(f"job-rm-{model}-x", names.REWARD_MODEL, "Pending", **status)
    made["metadata"]["labels"][names.REWARD_MODEL_LABEL] = model
    return made


def pod(
    name: str, role: str, phase: str = "Running", *, age: float = 600, node: str | None = None, **status: Any
) -> Manifest:  # fmt: skip
    """age: seconds before NOW."""
    metadata = {
        "name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "5",
        "labels": {names.ROLE_LABEL: role}, "creationTimestamp": stamp(NOW - timedelta(seconds=age)),
    }  # fmt: skip
    spec = {} if node is None else {"nodeName": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


PODS = [pod("head", names.HEAD), pod("worker-0", names.WORKER), pod("worker-1", names.WORKER)]


def reports(state: RayJobState = RayJobState.RUNNING, **report: Any) -> HeadReport:
    return HeadReport(RayJob(state), **report)


def conditions(status: RLJobStatus | None) -> dict[str, tuple[str, str]]:
    assert status is not None
    return {each.type: (each.status, each.reason) for each in status.conditions}
