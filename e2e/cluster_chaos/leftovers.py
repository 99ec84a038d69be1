"""What a deleted job leaves in the cluster: everything of its namespace counts, and volumes of its claim."""

import json
from collections.abc import Sequence
from typing import Any

from e2e.scenarios.job import Job

_KUBERNETES_OWN = ("configmap/kube-root-ca.crt", "serviceaccount/default")


def left_by(job: Job) -> list[str]:
    """As kubectl names them. The namespace is the job's alone, so no label is needed to tell whose they are."""
    kinds = job.kubectl("api-resources", "--namespaced", "--verbs=get,list", "--output=name").split()
    # Events end by themselves, an hour later.
    there = job.kubectl("get", ",".join(kind for kind in kinds if not kind.startswith("events")), "--output=name")
    volumes = json.loads(job.kubectl("get", "persistentvolumes", "--output=json"))["items"]
    return [*(name for name in there.split() if name not in _KUBERNETES_OWN), *volumes_of(job.namespace, volumes)]


def volumes_of(namespace: str, volumes: Sequence[dict[str, Any]]) -> list[str]:
    """Those of its claims that have to go with them: their StorageClass said `Delete`, and each keeps what it said."""
    return [
        f"persistentvolume/{each['metadata']['name']} ({each.get('status', {}).get('phase')})"
        for each in volumes
        if each["spec"].get("claimRef", {}).get("namespace") == namespace
        and each["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
    ]
