"""`--set PATH=VALUE`: write fields from the command line into a document."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rljob_api.schema import FREE_FORM, Schema, structural_schema
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.validation.metadata import METADATA
from rljob_api.validation.problems import Problem
from rljob_api.validation.source import Document, FieldPath, Location, dotted, read_value
from rljob_api.validation.suggest import suggest_field


def apply_overrides(document: Document, overrides: Sequence[str]) -> list[Problem]:
    """Write each "PATH=VALUE" into `document` and return a problem for each that cannot be written.

    PATH is relative to spec unless it begins with spec. or metadata. Lists are indexed from 0, as in
    rewards.functions[0].weight; the next free index appends an entry. VALUE is YAML; an empty VALUE removes the field.
    """
    return [problem for override in overrides for problem in _apply(document, override)]


def _apply(document: Document, override: str) -> Iterator[Problem]:
    location = Location(f"--set {override}")
    name, equals, text = override.partition("=")
    path = _path(name.strip())
    if not equals or not path:
        yield Problem(*location, "", "must be PATH=VALUE, such as training.steps=2")
    elif not isinstance(document.value, dict):
        return  # the document's own problem
    elif wrong := _unwritable(document.value, path):
        yield Problem(*location, dotted(wrong[0]), *wrong[1:])
    else:
        _write(document, path, read_value(text), location)


def _path(name: str) -> FieldPath:
    """The parts of PATH; () if it is malformed. Names of labels and annotations may contain dots."""
    if label := re.fullmatch(r"metadata\.(labels|annotations)\.(.+)", name):
        return ("metadata", label[1], label[2])
    if not re.fullmatch(r"[^.\[\]]+(\.[^.\[\]]+|\[\d+\])*", name):
        return ()
    parts = tuple(int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", name))
    return parts if parts[0] in {"spec", "metadata"} else ("spec", *parts)


def _unwritable(value: Any, path: FieldPath) -> tuple[FieldPath, str, str] | None:
    """The first part of `path` that is not a field, with message and remedy; None if all are fields."""
    schema: Schema = {"properties": {"spec": structural_schema(RLJobSpec), "metadata": METADATA}}
    for depth, part in enumerate(path, start=1):
        if isinstance(part, int) != (schema.get("type", _ANY[type(part)]) == "array"):
            return path[: depth - 1], *_MISREAD[type(part)]
        if isinstance(part, int):
            length = len(value) if isinstance(value, list) else 0
            if part > length:
                return (
                    path[:depth],
                    f"is out of range for a list of length {length}",
                    f"Use 0 to {length}; {length} appends",
                )
            schema = schema.get("items", {})
        else:
            field = _field(schema, part)
            if field is None:
                return path[:depth], "unknown field", suggest_field(part, tuple(schema.get("properties", ())))
            schema = field
        value = _child(value, part)
    return None


_ANY = {int: "array", str: "object"}
_MISREAD = {
    int: ("is not a list", "Remove the [ ]"),
    str: ("is a list", "Add an index, such as [0]"),
}


def _field(schema: Schema, name: str) -> Schema | None:
    """The schema of the field `name`; {} below a field of free form."""
    free: Schema | None = {} if FREE_FORM in schema or not schema else None
    field: Schema | None = schema.get("properties", {}).get(name, schema.get("additionalProperties", free))
    return field


def _write(document: Document, path: FieldPath, value: Any, location: Location) -> None:
    """Set `path` and create its missing parents; errors of the value are reported at the option."""
    holder = document.value
    for depth, part in enumerate(path[:-1], start=1):
        child = _child(holder, part)
        if not isinstance(child, (dict, list)):
            child = [] if isinstance(path[depth], int) else {}
            _put(holder, part, child)
            document.mark(path[:depth], location)
        holder = child
    _put(holder, path[-1], value)
    document.mark(path, location)


def _child(holder: Any, part: str | int) -> Any:
    if isinstance(holder, dict):
        return holder.get(part)
    return holder[part] if isinstance(holder, list) and isinstance(part, int) and part < len(holder) else None


def _put(holder: Any, part: str | int, value: Any) -> None:
    if isinstance(holder, list) and part == len(holder):
        holder.append(value)
    else:
        holder[part] = value
