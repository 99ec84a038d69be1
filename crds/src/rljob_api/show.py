"""The resolved job as YAML, which `rljob show` prints."""

from typing import Any

import yaml

from rljob_api.resolve import resolve
from rljob_api.schema import structural_schema, with_defaults
from rljob_api.v1alpha1 import RLJob, RLJobSpec
from rljob_api.v1alpha1.algorithm import Algorithm
from rljob_api.v1alpha1.terms import OFFLINE
from rljob_api.v1alpha1.unread import UNREAD_OFFLINE
from rljob_api.validation.rules import rule_findings
from rljob_api.validation.scalars import plain_scalar
from rljob_api.validation.source import FieldPath


def render_show(job: RLJob) -> str:
    """`job` with every effective field, as YAML in the order of the models.

    Fields without an effect are omitted, such as clipRatioHigh with loss clip, so the text is a valid RLJob.
    """
    spec = resolved_document(job.spec)
    metadata = job.metadata.model_dump(mode="json", by_alias=True)
    document = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {key: metadata[key] for key in _SHOWN_METADATA if metadata.get(key)},
        "spec": spec,
    }
    return yaml.dump(document, Dumper=TextDumper, sort_keys=False, allow_unicode=True, width=120)


_SHOWN_METADATA = ("name", "namespace", "labels", "annotations")


def resolved_document(spec: RLJobSpec) -> dict[str, Any]:
    """`resolve(spec)` as JSON values, without the fields that have no effect."""
    document: dict[str, Any] = with_defaults(
        structural_schema(RLJobSpec), resolve(spec).model_dump(mode="json", by_alias=True)
    )
    if (preset := spec.algorithm.preset) in OFFLINE:
        unread: set[FieldPath] = {tuple(field.split(".")) for field in UNREAD_OFFLINE}
        read = {
            name: document["algorithm"][name] for name in (["preset", "dpoBeta"] if preset == "dpo" else ["preset"])
        }
        return _without(document | {"algorithm": read}, unread)
    return document | {"algorithm": _effective(document["algorithm"])}


def _effective(algorithm: dict[str, Any]) -> dict[str, Any]:
    """`algorithm` without the fields that its rules reject."""
    refused = {finding.path for finding in rule_findings(structural_schema(Algorithm), algorithm)}
    return _without(algorithm, refused)


def _without(fields: dict[str, Any], refused: set[FieldPath], path: FieldPath = ()) -> dict[str, Any]:
    return {
        name: _without(item, refused, (*path, name)) if isinstance(item, dict) else item
        for name, item in fields.items()
        if (*path, name) not in refused
    }


class TextDumper(yaml.SafeDumper):
    """Writes text of several lines as a block, and quotes text that Kubernetes would not read as text."""


def _text(dumper: TextDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if isinstance(plain_scalar(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


TextDumper.add_representer(str, _text)
