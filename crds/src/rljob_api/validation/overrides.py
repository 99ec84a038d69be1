"""`--set PATH=VALUE`: fields written from the command line into a document that was read from a file."""

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
    """Write each "PATH=VALUE" into `document`; returns what cannot be written.

    PATH is below spec unless it begins with spec. or metadata.; list entries are counted from 0, as in
    rewards.functions[0].weight, and the next free number appends one. VALUE is YAML; an empty one removes the field.
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
    """The parts of PATH; () where it is none. Names of labels and annotations have dots of their own."""
    if label := re.fullmatch(r"metadata\.(labels|annotations)\.(.+)", name):
        return ("metadata", label[1], label[2])
    if not re.fullmatch(r"[^.\[\]]+(\.[^.\[\]]+|\[\d+\])*", name):
        return ()
    parts = tuple(int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", name))
    return parts if parts[0] in {"spec", "metadata"} else ("spec", *parts)


def _unwritable(value: Any, path: FieldPath) -> tuple[FieldPath, str, str] | None:
    """The first part of `path` that names no field, and why."""
    schema: Schema = {"properties": {"spec": structural_schema(RLJobSpec), "metadata": METADATA}}
    for depth, part in enumerate(path, start=1):
        if isinstance(part, int) != (schema.get("type", _ANY[type(part)]) == "array"):
            return path[: depth - 1], *_MISREAD[type(part)]
        if isinstance(part, int):
            length = len(value) if isinstance(value, list) else 0
            if part > length:
                return path[:depth], f"is no entry: the list has {length}", "Entries are counted from 0"
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
    int: ("is no list", "Remove the [ ]"),
    str: ("is a list", "Name an entry by its number, as in [0]"),
}


def _field(schema: Schema, name: str) -> Schema | None:
    """The schema of the field `name`; {} below a field of free form."""
    free: Schema | None = {} if FREE_FORM in schema or not schema else None
    field: Schema | None = schema.get("properties", {}).get(name, schema.get("additionalProperties", free))
    return field


def _write(document: Document, path: FieldPath, value: Any, location: Location) -> None:
    """Set `path`, making what should hold it; problems of what was written then point at the option."""
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
