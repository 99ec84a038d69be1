"""Kueue's queues for one test, and its Workloads there. What has no namespace is named after the test's."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kubernetes.client import ApiClient, ApiException, CustomObjectsApi

from e2e.cluster.access import Access
from tests.e2e.waiting import eventually

KUEUE = {"group": "kueue.x-k8s.io", "version": "v1beta2"}

PREEMPTION: Mapping[str, Any] = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}


@dataclass
class Queues:
    """made: plural and name of objects without a namespace, in the order of creation."""

    client: ApiClient
    namespace: str
    made: list[tuple[str, str]] = field(default_factory=list)

    @property
    def api(self) -> Any:
        return CustomObjectsApi(self.client)

    def full_name(self, name: str) -> str:
        return f"{self.namespace}-{name}"

    def create_flavor(self, name: str = "any", **spec: Any) -> str:
        return self._create_for_all("ResourceFlavor", "resourceflavors", name, spec)

    def create_priority(self, name: str, value: int) -> str:
        """A WorkloadPriorityClass."""
        return self._create_for_all("WorkloadPriorityClass", "workloadpriorityclasses", name, {}, value=value)

    def create_check(self, name: str) -> None:
        """An AdmissionCheck whose controller is ready."""
        full = self._create_for_all("AdmissionCheck", "admissionchecks", name, {"controllerName": "test/played"})
        active = {"type": "Active", "status": "True", "reason": "Played", "message": ""}
        body = {"status": {"conditions": [active | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
        self.api.patch_cluster_custom_object_status(**KUEUE, plural="admissionchecks", name=full, body=body)

    def create(self, quota: Mapping[str, object], name: str = "queue", flavor: str | None = None, **spec: Any) -> None:
        """A ClusterQueue with one flavor, and its LocalQueue of that name here."""
        resources = [{"name": resource, "nominalQuota": str(amount)} for resource, amount in quota.items()]
        flavors = [{"name": flavor or self._any_flavor(), "resources": resources}]
        given = {
            "namespaceSelector": {},
            "preemption": dict(PREEMPTION),
            "resourceGroups": [{"coveredResources": list(quota), "flavors": flavors}],
        }
        cluster_queue = self._create_for_all("ClusterQueue", "clusterqueues", name, {**given, **spec})
        self._create_here("LocalQueue", "localqueues", name, {"clusterQueue": cluster_queue})

    def patch(self, name: str = "queue", **spec: Any) -> None:
        """The ClusterQueue."""
        self.api.patch_cluster_custom_object(
            **KUEUE, plural="clusterqueues", name=self.full_name(name), body={"spec": spec}
        )

    def set_quota(self, quota: Mapping[str, object], name: str = "queue") -> None:
        found = self.api.get_cluster_custom_object(**KUEUE, plural="clusterqueues", name=self.full_name(name))
        (group,) = found["spec"]["resourceGroups"]
        group["flavors"][0]["resources"] = [{"name": each, "nominalQuota": str(quota[each])} for each in quota]
        self.patch(name, resourceGroups=[group])

    def create_workload(
        self, name: str, pods: Mapping[str, tuple[int, Mapping[str, str]]], queue: str = "queue", priority: int = 0
    ) -> None:
        """pods: count and requests of each podSet."""
        pod_sets = [_pod_set(each, count, requests) for each, (count, requests) in pods.items()]
        spec = {"queueName": queue, "priority": priority, "podSets": pod_sets}
        self._create_here("Workload", "workloads", name, spec)

    def workload(self, name: str) -> Any:
        return self.api.get_namespaced_custom_object(**KUEUE, plural="workloads", namespace=self.namespace, name=name)

    def workloads(self) -> list[Any]:
        found = self.api.list_namespaced_custom_object(**KUEUE, plural="workloads", namespace=self.namespace)
        return list(found["items"])

    def conditions(self, name: str) -> dict[str, tuple[str, str]]:
        """Status and reason by type."""
        found = self.workload(name).get("status", {}).get("conditions", [])
        return {each["type"]: (each["status"], each["reason"]) for each in found}

    def reaches(self, name: str, condition: str, reason: str, status: str = "True") -> None:
        eventually(lambda: self.conditions(name).get(condition) == (status, reason))

    def release(self, name: str) -> None:
        """What a controller does once the pods of an evicted Workload are gone."""
        found = self.workload(name)
        ended = {"status": "False", "reason": "Pending", "message": "no pods are left"}
        taken = ("QuotaReserved", "Admitted")
        conditions = [each | (ended if each["type"] in taken else {}) for each in found["status"]["conditions"]]
        body = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "status": {"admission": None, "conditions": conditions},
        }
        self.api.patch_namespaced_custom_object_status(
            **KUEUE, plural="workloads", namespace=self.namespace, name=name, body=body
        )

    def places(self, cluster: Access, name: str = "queue") -> dict[str, int]:
        """In the LocalQueue, by Workload, as Kueue's visibility API counts them."""
        path = f"/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/{self.namespace}/localqueues/{name}"
        found = json.loads(cluster.kubectl("get", "--raw", f"{path}/pendingworkloads"))
        return {each["metadata"]["name"]: each["positionInLocalQueue"] for each in found["items"]}

    def delete(self) -> None:
        """What has no namespace; Kueue keeps a queue as long as Workloads hold its quota, so these go first."""
        delete: Callable[..., Any] = self.api.delete_collection_namespaced_custom_object
        delete(**KUEUE, plural="workloads", namespace=self.namespace)
        for plural, name in reversed(self.made):
            with suppress(ApiException):  # a test has done it
                self.api.delete_cluster_custom_object(**KUEUE, plural=plural, name=name)

    def _any_flavor(self) -> str:
        name = self.full_name("any")
        return name if ("resourceflavors", name) in self.made else self.create_flavor()

    def _create_for_all(self, kind: str, plural: str, name: str, spec: Mapping[str, Any], **others: Any) -> str:
        full = self.full_name(name)
        body = _object(kind, full, **({"spec": spec} if spec else {}), **others)
        self.api.create_cluster_custom_object(**KUEUE, plural=plural, body=body)
        self.made.append((plural, full))
        return full

    def _create_here(self, kind: str, plural: str, name: str, spec: Mapping[str, Any]) -> None:
        body = _object(kind, name, spec=spec)
        self.api.create_namespaced_custom_object(**KUEUE, plural=plural, namespace=self.namespace, body=body)


def _object(kind: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **content}


def _pod_set(name: str, count: int, requests: Mapping[str, str]) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": dict(requests)}}
    return {"name": name, "count": count, "template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}
