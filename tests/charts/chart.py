"""The chart, rendered."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.helm import Helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/rljob-operator"

RELEASE = "train"
NAME = f"{RELEASE}-rljob-operator"
"""Of nearly everything that the release has."""

VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaced": {"namespaces": ["team-a", "team-b"]},
    "nothing cluster-wide": {
        "namespaces": ["team-a"], "crds": {"install": False}, "userRoles": {"create": False},
        "admission": {"operator": False, "ownNamespace": False},
    },
    "monitored": {
        "monitoring": {
            "serviceMonitor": True, "podMonitor": True, "dashboard": True, "labels": {"release": "prometheus"},
        },
    },
    "queued": {"namespaces": ["team-a"], "kueue": {"enabled": True, "namespace": "queues"}},
    "gangs": {"gang": {"volcano": True, "coscheduling": True, "native": True, "coschedulingScheduler": "gangs"}},
    "strict": {"admission": {"jobs": {"enabled": True, "secrets": ["hf-token", "rljob-*"]}}},
    "own image and nodes": {
        "image": {"repository": "registry.example.com:5000/rl/operator", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "operator": {"trainerImage": "registry.example.com/trainer:9", "rayVersion": "2.60.1", "logFormat": "console"},
        "replicas": 3,
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu-only", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"team": "platform"},
        "podAnnotations": {"sidecar": "off"},
        "serviceAccount": {"annotations": {"role": "operator"}},
        "networkPolicy": {"enabled": False},
    },
}  # fmt: skip
"""What the chart is rendered, linted and sent to an API server with."""


def render(helm: Helm, values: dict[str, Any], namespace: str = "rljob-system") -> list[dict[str, Any]]:
    return list(yaml.load_all(_rendered(helm, yaml.safe_dump(values), namespace), yaml.CSafeLoader))


@cache
def _rendered(helm: Helm, values: str, namespace: str) -> str:
    return helm("template", RELEASE, str(CHART), f"--namespace={namespace}", "--values=-", values=values)


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] in kinds]


def only(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = of_kind(objects, kind)
    return found


def names_of(objects: list[dict[str, Any]]) -> set[str]:
    return {each["metadata"]["name"] for each in objects}
