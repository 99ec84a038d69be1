"""Three queues of one cohort, of which each borrows what the others leave, and jobs that wait in them."""

from collections.abc import Mapping
from typing import Any

import yaml

from bench.operator.site import NAMESPACE
from e2e.cluster.access import Access

QUEUES = ("first", "second", "third")

GPUS_OF_A_JOB = 8

CLAIM = "shared"
"""Of all jobs: KWOK binds one volume in some seconds, and jobs with volumes of their own would wait for that."""

API = "kueue.x-k8s.io/v1beta2"


def create(access: Access, slots: int) -> None:
    """slots: how many jobs each queue's own quota admits."""
    quota = {"cpu": 100_000, "memory": "1000Ti", "nvidia.com/gpu": slots * GPUS_OF_A_JOB}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": "any", "resources": resources}]}
    objects = [_object("ResourceFlavor", "any", {})]
    for name in QUEUES:
        spec = {"cohortName": "bench", "namespaceSelector": {}, "resourceGroups": [group]}
        objects += [_object("ClusterQueue", name, spec)]
        objects += [_object("LocalQueue", name, {"clusterQueue": name}, namespace=NAMESPACE)]
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    objects += [_object("PersistentVolumeClaim", CLAIM, claim, "v1", namespace=NAMESPACE)]
    access.kubectl("apply", "--filename=-", objects=yaml.safe_dump_all(objects))


def queue_of(number: int) -> str:
    """Of ten jobs six, three and one: the first queue has more than its share of the quota, and borrows."""
    return next(name for name, most in zip(QUEUES, (6, 9, 10), strict=True) if number % 10 < most)


def _object(kind: str, name: str, spec: Mapping[str, Any], api: str = API, **metadata: str) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **metadata}, "spec": dict(spec)}
