"""Whether a message names fields of an RLJob, as its author knows it, and none of what is made for it.

spec.rewards.models[0].template.spec.containers[1].image    theirs, where they wrote two containers
spec.template.spec.containers[2].image                      of a Deployment, which they never saw
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.schema import FREE_FORM, Schema, structural_schema
from rljob_api.v1alpha1 import RLJob

_QUOTED_OR_PATH = re.compile(r"""
    "(?:[^"\\]|\\.)*"                                                     # a value, which may look like a path
    | ((?:the\ pod's\ )?\b(?:spec|metadata)(?:\.\w+|\[[^\]\s]*\])+)
""", re.VERBOSE)  # fmt: skip
_STEP = re.compile(r"\.?(\w+)|\[([^\]]*)\]")


def names_their_field(message: str, job: Any) -> bool:
    """job: as it was written. One path of the message must be in it; the API server's own paths may be too."""
    paths = [found[1] for found in _QUOTED_OR_PATH.finditer(message) if found[1] is not None]
    return any(_is_theirs(path, job) for path in paths)


def _is_theirs(path: str, job: Any) -> bool:
    """Not of metadata: every object has that."""
    schema = structural_schema(RLJob)["properties"]["spec"]
    return path.startswith("spec") and _leads(_STEP.findall(path.removeprefix("spec")), schema, job["spec"])


def _leads(steps: Sequence[tuple[str, str]], schema: Schema, value: Any) -> bool:
    """value: what is written there, None where nothing is: a field may be missing, an entry of a list is there."""
    if not steps:
        return True
    (name, entry), rest = steps[0], steps[1:]
    if entry and isinstance(value, list):
        return any(_leads(rest, schema.get("items", {}), each) for each in _entries(entry, value))
    key = name or entry
    written = value.get(key) if isinstance(value, Mapping) else None
    if name in schema.get("properties", {}):
        return _leads(rest, schema["properties"][name], written)
    if schema and FREE_FORM not in schema:
        return False
    return not rest if written is None else _leads(rest, {}, written)


def _entries(entry: str, values: list[Any]) -> list[Any]:
    """entry: its index, or its name, or its keys, as in name="side"."""
    if entry.isdecimal():
        return values[int(entry) :][:1]
    keys = dict(re.findall(r'(\w+)="?([^",]*)', entry)) or {"name": entry}
    there = [each for each in values if isinstance(each, Mapping)]
    return [each for each in there if all(_told(each.get(key, word)) == word for key, word in keys.items())]


def _told(value: Any) -> str:
    """As the API server tells a key: empty where it is none, as in hostAliases[ip=].ip: expected string."""
    return "" if isinstance(value, Mapping | list) else str(value)
