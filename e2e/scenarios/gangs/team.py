"""A namespace with one job, which needs every GPU of the cluster."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes.client import CustomObjectsApi, V1ObjectMeta, V1ResourceQuota, V1ResourceQuotaSpec

from rljob_operator.kube.kinds import POD_GROUPS, Manifest
from tests.e2e.jobs import Jobs, runs
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import Driver
from tests.rljob_operator.played_head import PlayedHeads

NODES, GPUS = 4, 8
"""Of the cluster."""

PODS = 1 + NODES
"""Of the job: a head, which has no GPU, and a worker on each node."""

HALF = 1 + NODES // 2

HOLD_SECONDS = 15.0
"""A bind takes less than one."""


@dataclass
class Team(Jobs):
    heads: PlayedHeads
    scheduler: str

    def begin(self, pods: int | None = None, **spec: Any) -> None:
        """Create the job. pods: so many of it may exist, until `allow` says otherwise."""
        self.heads.add(self.namespace, "job")
        if pods is not None:
            self._limit(pods)
        gang = {"gang": {"scheduler": self.scheduler}} if self.scheduler else {}
        self.create(**{"cluster": {"nodes": NODES, "gpusPerNode": GPUS}, **gang, **spec})
        if pods is not None:
            eventually(lambda: len(self.pods()) == pods)

    def allow(self) -> None:
        """All of its pods."""
        self._core.delete_namespaced_resource_quota("pods", self.namespace)

    def bound(self) -> list[Any]:
        """Pods that have a node."""
        return [pod for pod in self.pods() if pod.spec.node_name]

    def starts(self, attempt: int = 1) -> Driver:
        """All its pods have nodes, and its driver runs."""
        eventually(lambda: len(self.bound()) == PODS)
        return runs(self.heads, self, attempt)

    def kill_pod(self, name: str) -> None:
        self._core.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)

    def occupy_node(self) -> None:
        """All its GPUs, by a pod that is in no gang."""
        limits = {"nvidia.com/gpu": str(GPUS)}
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        pod = {"metadata": {"name": "occupies"}, "spec": {"containers": [container]}}
        self._core.create_namespaced_pod(self.namespace, pod)
        eventually(self.bound)

    def free_node(self) -> None:
        self.kill_pod("occupies")

    def pod_group(self) -> Manifest | None:
        return next(iter(pod_groups(self, self.scheduler)), None)

    def _limit(self, pods: int) -> None:
        """By a quota, so that KubeRay creates the others late: as it does by itself where it has much to do."""
        quota = V1ResourceQuota(metadata=V1ObjectMeta(name="pods"), spec=V1ResourceQuotaSpec(hard={"pods": str(pods)}))
        self._core.create_namespaced_resource_quota(self.namespace, quota)
        read = self._core.read_namespaced_resource_quota
        eventually(lambda: (read("pods", self.namespace).status.hard or {}).get("pods"))


def holds(condition: Callable[[], bool], seconds: float = HOLD_SECONDS) -> bool:
    """Whether it is true for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not condition():
            return False
        time.sleep(0.2)
    return True


def pod_groups(jobs: Jobs, scheduler: str) -> list[Manifest]:
    """Those in the namespace."""
    kind = POD_GROUPS[scheduler]
    group, _, version = kind.api_version.partition("/")
    api: Any = CustomObjectsApi(jobs.client)
    return list(api.list_namespaced_custom_object(group, version, jobs.namespace, kind.plural)["items"])
