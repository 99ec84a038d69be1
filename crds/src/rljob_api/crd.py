"""Writes the CustomResourceDefinition from the models: `python -m rljob_api.crd [FILE]`."""

import sys
from pathlib import Path
from typing import Any

import yaml

from rljob_api.schema import RULES, Schema, structural_schema
from rljob_api.v1alpha1 import RLJob

FILE = "crds/rljobs.rljob.dev.yaml"

_HEADER = "# Generated from crds/src/rljob_api by `make generate`; do not edit.\n"

_COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Step", "integer", ".status.progress.step"),
    ("Reward", "number", ".status.progress.reward"),
    ("Queue", "string", ".status.workload.queue"),
    ("GPUs", "integer", ".status.gpus"),
    ("Restarts", "integer", ".status.restarts"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition of RLJob."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "rljobs.rljob.dev"},
        "spec": {
            "group": "rljob.dev",
            "names": {
                "kind": "RLJob",
                "listKind": "RLJobList",
                "plural": "rljobs",
                "singular": "rljob",
                "shortNames": ["rlj"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def render() -> str:
    """The CRD as YAML; equal models give equal text."""
    return _HEADER + yaml.dump(crd(), Dumper=_NoAliases, sort_keys=False, width=120)


def _version() -> dict[str, Any]:
    return {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root_schema()},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS],
    }


def _root_schema() -> Schema:
    """Kubernetes itself declares apiVersion, kind and metadata: a CRD may neither bound them nor point at them."""
    schema = structural_schema(RLJob)
    own = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    rules = [{key: rule[key] for key in ("rule", "message")} for rule in schema[RULES]]
    return schema | {"properties": schema["properties"] | own, "required": ["spec"], RULES: rules}


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else FILE).write_text(render())
