"""A second judge of RLJob files: the generated CRD, read from its file, as the API server would apply it.

It shares no code with rljob_api but the reading of YAML: jsonschema judges the schema and cel-python the rules.
"""

import copy
import json
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import yaml
from celpy.adapter import json_to_cel

CRD = Path(__file__).parents[2] / "crds/rljobs.rljob.dev.yaml"

RULES = "x-kubernetes-validations"

OBJECT_META = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "uid": {"type": "string"},
        "creationTimestamp": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""What Kubernetes asks of metadata, as far as the test files go."""


@cache
def crd() -> dict[str, Any]:
    return yaml.safe_load(CRD.read_text())


def root_schema() -> dict[str, Any]:
    (version,) = crd()["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def admit(document: Any) -> tuple[list[str], list[str]]:
    """(errors of form, messages of broken rules) for one document; both empty where it is admitted."""
    errors, whole = formed(document)
    return errors, [] if errors else broken_rules(root_schema(), whole)


def formed(document: Any) -> tuple[list[str], Any]:
    """(errors of form, the document with its defaults)."""
    if not isinstance(document, dict):
        return ["not an object"], document
    document = copy.deepcopy(document)
    document.pop("status", None)
    errors = _unknown(root_schema(), document, "")
    _default(root_schema(), document)
    if (document.get("apiVersion"), document.get("kind")) != ("rljob.dev/v1alpha1", "RLJob"):
        errors.append("no such kind")
    errors += [error.message for error in jsonschema.Draft4Validator(root_schema()).iter_errors(document)]
    metadata = {key: item for key, item in (document.get("metadata") or {}).items() if item is not None}
    errors += [error.message for error in jsonschema.Draft4Validator(OBJECT_META).iter_errors(metadata)]
    return errors + _repeated(root_schema(), document), document


def broken_rules(schema: dict[str, Any], value: Any) -> list[str]:
    """Messages of the rules that do not hold at `value` and below it."""
    broken: list[str] = []
    if isinstance(value, dict):
        rules = [rule for rule in schema.get(RULES, ()) if "oldSelf" not in rule["rule"]]
        text = json.dumps(value, sort_keys=True) if rules else ""
        broken += [rule["message"] for rule in rules if not _holds(rule["rule"], text)]
        for name, field in schema.get("properties", {}).items():
            broken += broken_rules(field, value.get(name))
    if isinstance(value, list):
        broken += [message for item in value for message in broken_rules(schema.get("items", {}), item)]
    return broken


def refused_changes(schema: dict[str, Any], old: Any, new: Any) -> list[str]:
    """Messages of the rules of one object that its change from `old` to `new` breaks."""
    values = {"self": json_to_cel(new), "oldSelf": json_to_cel(old)}
    rules = [rule for rule in schema[RULES] if "oldSelf" in rule["rule"]]
    return [rule["message"] for rule in rules if not _program(rule["rule"]).evaluate(values)]


@cache  # most objects of most files are as in other files, and a rule takes milliseconds
def _holds(rule: str, text: str) -> bool:
    return bool(_program(rule).evaluate({"self": _value(text)}))


@lru_cache(maxsize=16)
def _value(text: str) -> Any:
    return json_to_cel(json.loads(text))


@cache
def _program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule.replace(".__function__", ".function")))


def _unknown(schema: dict[str, Any], value: Any, path: str) -> list[str]:
    if isinstance(value, list):
        return [error for item in value for error in _unknown(schema.get("items", {}), item, path)]
    properties = schema.get("properties", {})
    if not isinstance(value, dict) or not properties:
        return []
    closed = "x-kubernetes-preserve-unknown-fields" not in schema
    unknown = [f"unknown field {path}.{name}" for name in value if closed and name not in properties]
    known = [(name, item) for name, item in value.items() if name in properties]
    return unknown + [error for name, item in known for error in _unknown(properties[name], item, f"{path}.{name}")]


def _default(schema: dict[str, Any], value: Any) -> None:
    """Drop the nulls of fields and fill in defaults, in place."""
    if isinstance(value, list):
        for item in value:
            _default(schema.get("items", {}), item)
    properties = schema.get("properties", {})
    if not isinstance(value, dict) or not properties:
        return
    for name in [name for name, item in value.items() if item is None]:
        if not properties.get(name, {}).get("nullable"):
            del value[name]
    for name, field in properties.items():
        if "default" in field:
            value.setdefault(name, copy.deepcopy(field["default"]))
        _default(field, value.get(name))


def _repeated(schema: dict[str, Any], value: Any) -> list[str]:
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        return [error for name, item in value.items() for error in _repeated(properties.get(name, {}), item)]
    if not isinstance(value, list):
        return []
    keys = schema.get("x-kubernetes-list-map-keys")
    entries = [[item.get(key) for key in keys] if keys and isinstance(item, dict) else item for item in value]
    unique = not schema.get("x-kubernetes-list-type") or all(entries.count(entry) == 1 for entry in entries)
    return [] if unique else ["repeated entry"]
