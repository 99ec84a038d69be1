"""Runs so many jobs through the queues, and matches each release of a quota with the start that follows it."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kubernetes.client import ApiClient, CustomObjectsApi
from kubernetes.watch import Watch

from bench.operator.measures import RAY, RAYJOBS, RLJOBS
from bench.operator.site import NAMESPACE, wait
from bench.queue.queues import CLAIM, queue_of
from tests.rljob_operator.snapshots import SPEC

WORKLOADS = {"group": "kueue.x-k8s.io", "version": "v1beta2", "namespace": NAMESPACE, "plural": "workloads"}
CLUSTERS = {**RAY, "plural": "rayclusters"}

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

CHECKPOINT = {"checkpoint": {"volume": {"existingClaim": CLAIM}}}

ENDED = {"jobStatus": "SUCCEEDED", "jobDeploymentStatus": "Complete"}
"""What KubeRay writes when a RayJob's driver has ended; no head answers it in this control plane."""


class Seen:
    """Seconds at which this process saw Workloads end and RayClusters begin, by name.

    kind: what the names of the jobs begin with.
    """

    def __init__(self, client: Callable[[], ApiClient], kind: str) -> None:
        self.released: dict[str, float] = {}
        self.started: dict[str, float] = {}
        for collection, seen, counts in ((WORKLOADS, self.released, _is_finished), (CLUSTERS, self.started, _is_any)):
            arguments = (client(), collection, seen, f"{kind}-", counts)
            threading.Thread(target=_follow, args=arguments, daemon=True).start()


def _is_finished(workload: Mapping[str, Any]) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any((each["type"], each["status"]) == ("Finished", "True") for each in conditions)


def _is_any(_: Mapping[str, Any]) -> bool:
    return True


def _follow(
    client: ApiClient, collection: Mapping[str, str], seen: dict[str, float], begin: str,
    counts: Callable[[Mapping[str, Any]], bool],
) -> None:  # fmt: skip
    api: Any = CustomObjectsApi(client)
    while True:  # a watch ends after minutes
        for event in Watch().stream(api.list_namespaced_custom_object, **collection):
            name = event["object"]["metadata"]["name"]
            if begin in name and counts(event["object"]):
                seen.setdefault(name, time.monotonic())


def rljob(api: Any, name: str, number: int) -> None:
    _create(api, RLJOBS, "rljob.dev/v1alpha1", "RLJob", name, number, {**SPEC, **CHECKPOINT})


def rayjob(api: Any, name: str, number: int, cluster: Mapping[str, Any]) -> None:
    spec = {"entrypoint": "true", "rayClusterSpec": dict(cluster), "suspend": True, "shutdownAfterJobFinishes": True}
    _create(api, RAYJOBS, "ray.io/v1", "RayJob", name, number, spec)


def _create(
    api: Any, collection: Mapping[str, str], version: str, kind: str, name: str, number: int, spec: Any
) -> None:
    metadata = {"name": name, "labels": {QUEUE_LABEL: queue_of(number)}}
    body = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    api.create_namespaced_custom_object(**collection, body=body)


def end_rayjobs(api: Any, ended: set[str]) -> None:
    """Those whose clusters are ready and drivers submitted, as if these had ended."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    for job in api.list_namespaced_custom_object(**RAYJOBS)["items"]:
        name, status = job["metadata"]["name"], job.get("status", {})
        if name not in ended and status.get("jobDeploymentStatus") == "Running":
            api.patch_namespaced_custom_object_status(**RAYJOBS, name=name, body={"status": ENDED | {"endTime": now}})
            ended.add(name)


def delays(seen: Seen, slots: int) -> list[float]:
    """Seconds from each release to the start that it allowed: the first `slots` jobs start without one."""
    starts, releases = sorted(seen.started.values())[slots:], sorted(seen.released.values())
    return [start - release for start, release in zip(starts, releases, strict=False)]


def through(seen: Seen, names: Sequence[str], tick: Callable[[], None] = lambda: None) -> None:
    """Wait until all have started and released their quota."""

    def done() -> bool:
        tick()
        return min(len(seen.started), len(seen.released)) >= len(names)

    wait("all jobs to run through the queues", done, patience=1200.0 + 10 * len(names))
