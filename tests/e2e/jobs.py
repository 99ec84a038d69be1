"""RLJobs of one namespace on a real API server, as a test sees them."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubernetes.client import (
    ApiClient,
    ApiException,
    AppsV1Api,
    CoreV1Api,
    CustomObjectsApi,
    NetworkingV1Api,
    PolicyV1Api,
)

from rljob_api.conditions import Aspect, Note
from rljob_operator.runtime import key
from tests.e2e.waiting import eventually
from tests.rljob_operator.played_driver import Driver
from tests.rljob_operator.played_head import PlayedHeads
from tests.rljob_operator.snapshots import SPEC

RLJOB = {"group": "rljob.dev", "version": "v1alpha1", "plural": "rljobs"}
RAY_CLUSTER = {"group": "ray.io", "version": "v1", "plural": "rayclusters"}


@dataclass
class Jobs:
    client: ApiClient
    namespace: str

    @property
    def _api(self) -> Any:
        return CustomObjectsApi(self.client)

    @property
    def _core(self) -> Any:
        return CoreV1Api(self.client)

    def create(self, name: str = "job", **spec: Any) -> None:
        self.create_from({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "spec": {**SPEC, **spec}}, name)

    def create_from(self, document: Any, name: str) -> None:
        """The document's job, under that name and in this namespace."""
        body = document | {"metadata": document.get("metadata", {}) | {"name": name, "namespace": self.namespace}}
        self._api.create_namespaced_custom_object(**RLJOB, namespace=self.namespace, body=body)

    def get(self, name: str = "job") -> Any:
        return self._api.get_namespaced_custom_object(**RLJOB, namespace=self.namespace, name=name)

    def patch(self, name: str = "job", **spec: Any) -> None:
        self._api.patch_namespaced_custom_object(
            **RLJOB, namespace=self.namespace, name=name, body={"spec": spec}
        )  # fmt: skip

    def label(self, name: str = "job", **labels: str | None) -> None:
        """None takes one away."""
        self._api.patch_namespaced_custom_object(
            **RLJOB, namespace=self.namespace, name=name, body={"metadata": {"labels": labels}}
        )  # fmt: skip

    def delete(self, name: str = "job") -> None:
        self._api.delete_namespaced_custom_object(**RLJOB, namespace=self.namespace, name=name)

    def delete_by_force(self, name: str = "job") -> None:
        """Its finalizers too, as a person does who does not want to wait."""
        where = {**RLJOB, "namespace": self.namespace, "name": name}
        self.delete(name)
        self._api.patch_namespaced_custom_object(**where, body={"metadata": {"finalizers": None}})

    def exists(self, name: str = "job") -> bool:
        try:
            self.get(name)
        except ApiException as error:
            if error.status == 404:
                return False
            raise
        return True

    def status(self, name: str = "job") -> Any:
        return self.get(name).get("status", {})

    def conditions(self, name: str = "job") -> dict[str, tuple[str, str, str]]:
        """Status, reason and message by type."""
        found = self.status(name).get("conditions", [])
        return {each["type"]: (each["status"], each["reason"], each.get("message", "")) for each in found}

    def reaches(self, phase: str, name: str = "job") -> Any:
        """The status, once it has that phase."""

        def there() -> Any:
            status = self.status(name)
            return status if status.get("phase") == phase else None

        return eventually(there)

    def clusters(self) -> list[Any]:
        found: Any = self._api.list_namespaced_custom_object(**RAY_CLUSTER, namespace=self.namespace)
        return list(found["items"])

    def pods(self) -> list[Any]:
        return list(self._core.list_namespaced_pod(self.namespace).items)

    def servers(self) -> dict[str, Any]:
        """Deployments of reward models, by name."""
        api: Any = AppsV1Api(self.client)
        found = api.list_namespaced_deployment(self.namespace).items
        return {each.metadata.name: each for each in found}

    def services(self) -> list[str]:
        """Of reward models: KubeRay's have no label of ours."""
        found = self._core.list_namespaced_service(self.namespace, label_selector="rljob.dev/job").items
        return sorted(each.metadata.name for each in found)

    def objects(self) -> list[str]:
        """All that jobs consist of, such as ConfigMap/job-job: without what the namespace has anyway."""
        core, apps = self._core, AppsV1Api(self.client)
        lists: dict[str, Any] = {
            "ConfigMap": core.list_namespaced_config_map,
            "Deployment": apps.list_namespaced_deployment,
            "NetworkPolicy": NetworkingV1Api(self.client).list_namespaced_network_policy,
            "PersistentVolumeClaim": core.list_namespaced_persistent_volume_claim,
            "Pod": core.list_namespaced_pod,
            "PodDisruptionBudget": PolicyV1Api(self.client).list_namespaced_pod_disruption_budget,
            "ReplicaSet": apps.list_namespaced_replica_set,
            "Secret": core.list_namespaced_secret,
            "Service": core.list_namespaced_service,
        }
        found = [
            f"{kind}/{each.metadata.name}" for kind, listed in lists.items() for each in listed(self.namespace).items
        ]
        found += [f"RayCluster/{each['metadata']['name']}" for each in self.clusters()]
        return sorted({*found} - {"ConfigMap/kube-root-ca.crt", f"Secret/{key.NAME}"})

    def workers(self) -> set[str]:
        """Uids of worker pods that are not ending."""
        found = self._core.list_namespaced_pod(self.namespace, label_selector="rljob.dev/role=worker").items
        return {pod.metadata.uid for pod in found if pod.metadata.deletion_timestamp is None}

    def claims(self) -> list[str]:
        found = self._core.list_namespaced_persistent_volume_claim(self.namespace).items
        return [each.metadata.name for each in found]

    def kill_pods(self, role: str) -> None:
        """At once, as a node that vanishes does."""
        core = self._core
        for pod in core.list_namespaced_pod(self.namespace, label_selector=f"rljob.dev/role={role}").items:
            core.delete_namespaced_pod(pod.metadata.name, self.namespace, grace_period_seconds=0)

    def events(self) -> list[tuple[str, str]]:
        """Reason and message of each, oldest first."""
        return [(each.reason, each.message) for each in sorted(self._events(), key=lambda each: each.event_time)]

    def told_twice(self, attempts: int = 1) -> list[tuple[str, str, datetime | None]]:
        """Reason, message and second of events that there are several of. An attempt starts once, whenever it is. Its
        pods may be ready in the second in which those of the one before were.
        """
        told = Counter(
            (
                each.reason,
                each.message,
                None if each.reason == Note.ATTEMPT_STARTING else each.event_time.replace(microsecond=0),
            )
            for each in self._events()
        )
        return [each for each, times in told.items() if times > (attempts if each[0] == Aspect.ALL_PODS_READY else 1)]

    def _events(self) -> list[Any]:
        found = self._core.list_namespaced_event(self.namespace, field_selector="involvedObject.kind=RLJob")
        return list(found.items)


def runs(heads: PlayedHeads, jobs: Jobs, attempt: int = 1) -> Driver:
    """The driver of an attempt, submitted and playing by hand."""
    head = heads.head(jobs.namespace, "job")
    driver: Driver = eventually(lambda: next((each for each in head.drivers if each.attempt == attempt), None))
    driver.start()
    eventually(lambda: jobs.status().get("phase") == "Running" and jobs.status()["attempt"] == attempt)
    return driver
