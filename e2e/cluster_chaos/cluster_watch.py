"""What of a job runs, seen while it trains: pods, by the API server; Ray's heads and drivers, among this machine's
processes.
"""

import json
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from kubernetes.client import ApiClient, ApiException, CoreV1Api, CustomObjectsApi
from urllib3.exceptions import HTTPError

from e2e.scenarios.job import Job
from rljob_operator.names import HEAD, JOB_LABEL, ROLE_LABEL

Object = dict[str, Any]

GCS = "gcs_server"
"""Ray's program of that name."""

LOOK_SECONDS = 5.0
"""Of the API server's answer."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A process. awake: not stopped by a signal, as chaos freezes it."""

    attempt: int
    awake: bool


@dataclass(slots=True)
class SideBySide:
    """Of things of which one should be there. longest: seconds for which several were, from look to look."""

    longest: float = 0.0
    since: float | None = None

    def add(self, count: int, now: float) -> None:
        """What a look saw. now: seconds of any clock."""
        if count < 2:
            self.since = None
            return
        self.since = now if self.since is None else self.since
        self.longest = max(self.longest, now - self.since)


@dataclass(slots=True)
class Running:
    """heads, clusters: the most running head pods, and RayClusters (by uid) with running pods, of one look.

    asked: the most RayClusters of one look that were not deleted, with or without pods.

    driven: attempts whose driver was seen. twice: those of which two drivers were seen in one look.
    awake: drivers that were not frozen, side by side. head_seen: whether a Ray head was. ray_heads: those side by side.
    """

    heads: int = 0
    clusters: int = 0
    asked: int = 0
    driven: set[int] = field(default_factory=set)
    twice: set[int] = field(default_factory=set)
    awake: SideBySide = field(default_factory=SideBySide)
    head_seen: bool = False
    ray_heads: SideBySide = field(default_factory=SideBySide)

    def add_pods(self, pods: Sequence[Object]) -> None:
        running = [pod for pod in pods if pod.get("status", {}).get("phase") == "Running"]
        owners = (owner for pod in running for owner in pod["metadata"].get("ownerReferences", ()))
        self.heads = max(self.heads, sum(pod["metadata"]["labels"].get(ROLE_LABEL) == HEAD for pod in running))
        self.clusters = max(self.clusters, len({owner["uid"] for owner in owners if owner["kind"] == "RayCluster"}))

    def add_clusters(self, clusters: Sequence[Object]) -> None:
        self.asked = max(self.asked, sum("deletionTimestamp" not in each["metadata"] for each in clusters))

    def add_drivers(self, drivers: Sequence[Driver], now: float) -> None:
        """now: seconds of any clock."""
        numbers = [driver.attempt for driver in drivers]
        self.driven |= set(numbers)
        self.twice |= {number for number in numbers if numbers.count(number) > 1}
        self.awake.add(sum(driver.awake for driver in drivers), now)

    def add_ray_heads(self, count: int, now: float) -> None:
        """Also those of pods that were deleted by force, which no list shows. now: as of drivers."""
        self.head_seen |= count > 0
        self.ray_heads.add(count, now)


class ClusterWatch:
    """Looks at a job again and again, also while the API server is away now and then."""

    def __init__(self, job: Job, client: ApiClient) -> None:
        self.running = Running()
        self._job, self._core, self._custom = job, CoreV1Api(client), CustomObjectsApi(client)
        self._pods: set[str] = set()

    def look(self) -> None:
        with suppress(ApiException, HTTPError):
            self.running.add_clusters(self._clusters())
            pods = self._list()
            self.running.add_pods(pods)
            self._pods |= {pod["metadata"]["uid"] for pod in pods}  # one deleted by force runs on, and is not listed
        self.running.add_drivers(list(drivers(self._pods)), time.monotonic())
        self.running.add_ray_heads(ray_heads(self._pods), time.monotonic())

    def _list(self) -> list[Object]:
        selector = f"{JOB_LABEL}={self._job.name}"
        answer: Any = self._core.list_namespaced_pod(
            self._job.namespace, label_selector=selector, _preload_content=False, _request_timeout=LOOK_SECONDS
        )
        pods: list[Object] = json.loads(answer.data)["items"]
        return pods

    def _clusters(self) -> list[Object]:
        """Of the namespace, which is the job's alone."""
        listed: Any = self._custom.list_namespaced_custom_object(
            "ray.io", "v1", self._job.namespace, "rayclusters", _request_timeout=LOOK_SECONDS
        )
        clusters: list[Object] = listed["items"]
        return clusters


def drivers(pods: Collection[str]) -> Iterator[Driver]:
    """In these pods, by uid. Nodes are namespaces of this machine, so it sees all processes of their pods."""
    found = {
        process.pid: (process, attempt)
        for process in psutil.process_iter(["cmdline", "ppid", "status"])
        if (attempt := attempt_of(process.info["cmdline"] or ())) is not None
    }
    for process, attempt in found.values():
        forked = process.info["ppid"] in found  # a child that is about to be another program
        if not forked and is_in(pods, _cgroups(process.pid)):
            yield Driver(attempt, awake=process.info["status"] not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))


def ray_heads(pods: Collection[str]) -> int:
    """How many run in these pods, by uid: each has one GCS."""
    return sum(_is_gcs(each) and is_in(pods, _cgroups(each.pid)) for each in psutil.process_iter())


def _is_gcs(process: psutil.Process) -> bool:
    """Asked of the process: psutil shares the facts of an iteration with those of other threads."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.name() == GCS)
    return False


def attempt_of(words: Sequence[str]) -> int | None:
    """Whose driver that command line starts; None for that of another program."""
    number = dict(pairwise(words)).get("--attempt", "")
    return int(number) if "driver" in words and number.isdigit() else None


def is_in(pods: Collection[str], cgroups: str) -> bool:
    """A kubelet names a pod's cgroup by the pod's uid. cgroups: of the process, as /proc tells them."""
    return any(f"/pod{uid}/" in cgroups for uid in pods)


def _cgroups(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cgroup").read_text()
    return ""
