"""Validates a value against a structural schema, with messages for the user."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.schema import FREE_FORM, UNJUDGED, Schema
from rljob_api.v1alpha1.base import PATTERN_MEANINGS
from rljob_api.validation.source import FieldPath
from rljob_api.validation.suggest import closest, sibling_meant, suggest_field


@dataclass(frozen=True, slots=True)
class Finding:
    """One error at `path`.

    at_key: the error concerns the name of the field, or the field is missing.
    meant: the sibling field that a misspelled name probably means.
    """

    path: FieldPath
    message: str
    remedy: str = ""
    at_key: bool = False
    meant: FieldPath | None = None


def findings(schema: Schema, value: Any, path: FieldPath = ()) -> Iterator[Finding]:
    """Every error of `value` against `schema`, at most one for a scalar."""
    if "enum" in schema:
        yield from _options(schema["enum"], value, path)
    elif not _has_type(schema, value):
        wanted = PATTERN_MEANINGS.get(schema.get("pattern", ""), _ARTICLES[schema["type"]])
        yield Finding(path, f"must be {wanted}; got {shown(value)}", _type_remedy(schema, value))
    elif isinstance(value, dict):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        yield from _list(schema, value, path)
    elif finding := _scalar(schema, value, path):
        yield finding


def broken_fields(found: Iterable[Finding]) -> set[FieldPath]:
    """The fields without a valid value; rules that read them are skipped."""
    return {path for finding in found for path in (finding.path, finding.meant) if path is not None}


def shown(value: Any) -> str:
    """`value` as YAML, shortened if it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 4]}...{text[-1]}"


_LONGEST_SHOWN = 60
_ARTICLES = {
    "object": "a mapping of fields",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


def _has_type(schema: Schema, value: Any) -> bool:
    if "type" not in schema:
        return True
    if schema["type"] == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[schema["type"]]) and (schema["type"] == "boolean" or not isinstance(value, bool))


def _type_remedy(schema: Schema, value: Any) -> str:
    wanted = schema["type"]
    if wanted == "string" and isinstance(value, (bool, int, float)):
        return "Put it in quotes" if _matches(schema.get("pattern", ""), str(value)) else ""
    if wanted == "array" and value is not None:
        return "Write it as a list, in [ ]"
    if wanted == "object" and schema.get("properties") and FREE_FORM not in schema:
        return f"Its fields are {', '.join(schema['properties'])}"
    if isinstance(value, str) and _reads_as(wanted, value):
        return "Remove the quotes"
    return ""


def _reads_as(wanted: str, text: str) -> bool:
    pattern = {"integer": r"[-+]?\d+", "number": r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?", "boolean": "true|false"}
    return bool(re.fullmatch(pattern.get(wanted, "(?!)"), text))


def _object(schema: Schema, value: dict[str, Any], path: FieldPath) -> Iterator[Finding]:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    unknown = [name for name in value if name not in properties and FREE_FORM not in schema]
    meant = {name: sibling_meant(name, tuple(properties)) for name in unknown[:_MOST_SUGGESTED]}
    for name in schema.get("required", ()):
        if name not in value and name not in meant.values():
            yield Finding((*path, name), "is required", _first_sentence(properties[name]), at_key=True)
    for name, item in value.items():
        field = properties.get(name, others)
        if field is not None:
            yield from findings(field, item, (*path, name))
        elif FREE_FORM not in schema:
            beside = meant.get(name)
            remedy = suggest_field(name, tuple(properties)) if name in meant else ""
            yield Finding((*path, name), "unknown field", remedy, True, (*path, beside) if beside else None)
    if len(value) > schema.get("maxProperties", len(value)):
        yield Finding(path, f"takes at most {schema['maxProperties']} entries; got {len(value)}")


_MOST_SUGGESTED = 20
"""Unknown names of one block that get a remedy; comparing thousands with all fields takes seconds."""


def _first_sentence(schema: Schema) -> str:
    description: str = schema.get("description", "")
    return description.split(". ", maxsplit=1)[0].removesuffix(".")


def _list(schema: Schema, value: list[Any], path: FieldPath) -> Iterator[Finding]:
    for index, item in enumerate(value):
        yield from findings(schema.get("items", UNJUDGED), item, (*path, index))
    if len(value) < schema.get("minItems", 0):
        yield Finding(path, f"needs at least {schema['minItems']} entry")
    if len(value) > schema.get("maxItems", len(value)):
        yield Finding(path, f"takes at most {schema['maxItems']} entries; got {len(value)}")
    yield from _repeats(schema, value, path)


def _repeats(schema: Schema, value: list[Any], path: FieldPath) -> Iterator[Finding]:
    """Entries that equal an earlier one, by key (list type map) or as a whole (list type set)."""
    kind = schema.get("x-kubernetes-list-type")
    key = schema["x-kubernetes-list-map-keys"][0] if kind == "map" else None
    seen: list[Any] = []
    for index, item in enumerate(value if kind in {"map", "set"} else ()):
        identity = item.get(key) if isinstance(item, dict) else item
        if identity in seen and identity is not None:
            where = (*path, index, key) if key else (*path, index)
            yield Finding(where, f"{shown(identity)} is already in this list", "Rename it" if key else "Remove it")
        seen.append(identity)


def _options(options: Sequence[str], value: Any, path: FieldPath) -> Iterator[Finding]:
    if value not in options:
        wanted = f"one of {', '.join(options)}" if len(options) > 1 else options[0]
        near = _near(value, options) if len(options) > 1 else None
        yield Finding(path, f"must be {wanted}; got {shown(value)}", f"Did you mean {near}?" if near else "")


def _scalar(schema: Schema, value: Any, path: FieldPath) -> Finding | None:
    wanted = _broken_length(schema, value) if isinstance(value, str) else _broken_range(schema, value)
    return Finding(path, f"{wanted}; got {shown(value)}") if wanted else None


def _near(value: Any, options: Sequence[str]) -> str | None:
    """The option that is probably meant; for true and false, which YAML also reads from yes and no: all and none."""
    if isinstance(value, bool):
        meant = "all" if value else "none"
        return meant if meant in options else None
    return closest(value, options) if isinstance(value, str) else None


def _broken_length(schema: Schema, text: str) -> str:
    if not text and schema.get("minLength", 0) > 0:
        return "must not be empty"
    if len(text) > schema.get("maxLength", len(text)):
        return f"must have at most {schema['maxLength']} characters, not {len(text)}"
    pattern = schema.get("pattern", "")
    too_short = len(text) < schema.get("minLength", 0)
    return f"must be {PATTERN_MEANINGS[pattern]}" if too_short or not _matches(pattern, text) else ""


def _matches(pattern: str, text: str) -> bool:
    # Python's $ also matches before a final line break; RE2's does not.
    return not pattern or bool(re.fullmatch(pattern, text))


def _broken_range(schema: Schema, number: float) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum", False), schema.get("exclusiveMaximum", False)
    too_low = low is not None and (number <= low if above else number < low)
    too_high = high is not None and (number >= high if below else number > high)
    if not (too_low or too_high):
        return ""
    if None not in (low, high) and not above and not below:
        return f"must be from {_plain(low)} to {_plain(high)}"
    bounds = [
        f"{'above' if above else 'at least'} {_plain(low)}" if low is not None else "",
        f"{'below' if below else 'at most'} {_plain(high)}" if high is not None else "",
    ]
    return f"must be {' and '.join(filter(None, bounds))}"


def _plain(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)
