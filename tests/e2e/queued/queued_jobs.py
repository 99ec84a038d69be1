"""RLJobs in Kueue's queues, as a test sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rljob_operator import names
from tests.e2e.jobs import Jobs
from tests.e2e.queued.queues import KUEUE, Queues
from tests.rljob_operator.snapshots import SPEC

QUOTA: Mapping[str, object] = {"cpu": 1000, "memory": "10Ti", "nvidia.com/gpu": 8}
"""The GPUs of one job."""

NO_QUOTA = {**QUOTA, "nvidia.com/gpu": 0}
NODES = {"type": "kwok"}


@dataclass
class QueuedJobs(Jobs):
    """queues: one, of which the flavor names NODES, with quota for one job; and priorities low and high."""

    queues: Queues

    def begin(self) -> None:
        self.queues.create(QUOTA, flavor=self.queues.create_flavor("nodes", nodeLabels=NODES))
        for word, value in (("low", 1), ("high", 10)):
            self.queues.create_priority(word, value)

    def queue(self, name: str = "job", priority: str | None = None, queue: str = "queue", **spec: Any) -> None:
        """A job in the queue."""
        labels = {names.QUEUE_LABEL: queue}
        labels |= {names.PRIORITY_LABEL: self.queues.full_name(priority)} if priority else {}
        document = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"labels": labels}}
        self.create_from(document | {"spec": {**SPEC, **spec}}, name)

    def workload(self, name: str = "job") -> Any:
        """None if there is none."""
        found = self.queues.workloads()
        return next((each for each in found if each["metadata"]["ownerReferences"][0]["name"] == name), None)

    def workload_is(self, kind: str, name: str = "job") -> bool:
        """Whether that condition of the Workload is true."""
        found = (self.workload(name) or {}).get("status", {}).get("conditions", ())
        return any(each["type"] == kind and each["status"] == "True" for each in found)

    def activate(self, *, active: bool) -> None:
        name = self.workload()["metadata"]["name"]
        where = {**KUEUE, "plural": "workloads", "namespace": self.namespace, "name": name}
        self._api.patch_namespaced_custom_object(**where, body={"spec": {"active": active}})

    def delete_workload(self) -> None:
        name = self.workload()["metadata"]["name"]
        self._api.delete_namespaced_custom_object(**KUEUE, plural="workloads", namespace=self.namespace, name=name)

    def is_queued(self, name: str = "job") -> bool:
        """Nothing of it runs, and it waits."""
        return self.status(name).get("phase") == "Queued" and not self.pods_of(name)

    def pods_of(self, name: str) -> list[Any]:
        return [pod for pod in self.pods() if (pod.metadata.labels or {}).get(names.JOB_LABEL) == name]
