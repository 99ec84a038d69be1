"""Writes the API reference from the models: `python -m rljob_api.reference [FILE]`."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from rljob_api.markdown import table
from rljob_api.schema import FREE_FORM, RULES, Schema, structural_schema
from rljob_api.show import resolved_document
from rljob_api.v1alpha1 import RLJob, RLJobSpec
from rljob_api.v1alpha1.algorithm import GOVERNED
from rljob_api.v1alpha1.base import PATTERN_MEANINGS
from rljob_api.v1alpha1.terms import OFFLINE, Preset

FILE = "docs/api.md"

_HEAD = """# API reference: `rljob.dev/v1alpha1`, kind `RLJob`

Generated from the models by `make generate`; do not edit.

A field without a default is optional unless it is **required**. *By preset* means that `algorithm.preset` sets the
default ([presets](#presets)); `rljob show FILE` prints a file with every field. Durations have Go's format: `90s`,
`1h30m`, `500ms`. The API server and `rljob validate` apply the same schema and the same rules.
"""


def render() -> str:
    """The reference as Markdown; equal models give equal text."""
    root = structural_schema(RLJob)["properties"]
    spec = _block("spec", root["spec"], level=2)
    return "\n".join([_HEAD, *spec, *_presets(), *_block("status", root["status"], level=2)])


def _block(path: str, schema: Schema, level: int) -> Iterator[str]:
    """One object: description, fields, rules, then nested objects, without Kubernetes' own."""
    yield f"{'#' * level} `{path}`\n\n{schema['description']}\n"
    required = schema.get("required", ())
    rows = [
        (
            f"`{name}`",
            _type(field),
            _default(f"{path}.{name}", field, name in required),
            _bounds(field),
            _meaning(field),
        )
        for name, field in schema["properties"].items()
    ]
    yield table(("Field", "Type", "Default", "Bounds", "Meaning"), rows)
    if rules := schema.get(RULES):
        messages = dict.fromkeys(rule["message"] for rule in rules)
        yield "Rules:\n\n" + "\n".join(f"- {message}." for message in messages) + "\n"
    for name, field in schema["properties"].items():
        place, inner = (f"{path}.{name}[]", field["items"]) if "items" in field else (f"{path}.{name}", field)
        if "properties" in inner and FREE_FORM not in inner:
            yield from _block(place, inner, min(level + 1, 4))


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return ", ".join(f"`{option}`" for option in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if FREE_FORM in schema:
        return "any fields"
    if schema.get("format") == "date-time":
        return "time"
    return "duration" if _is_duration(schema) else str(schema["type"])


def _is_duration(schema: Schema) -> bool:
    return "duration" in PATTERN_MEANINGS.get(schema.get("pattern", ""), "")


def _meaning(schema: Schema) -> str:
    description: str = schema["description"]
    return (description.partition("\n\n")[0] if "properties" in schema else description).replace("\n", " ")


def _default(path: str, schema: Schema, required: bool) -> str:
    if required:
        return "**required**"
    if path.removeprefix("spec.algorithm.") in GOVERNED:
        return "*by preset*"
    default = schema.get("default")
    return "" if default is None or isinstance(default, dict) else f"`{json.dumps(default)}`".replace('"', "")


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    parts = [
        f"{'>' if schema.get('exclusiveMinimum') else '≥'} {low:,}" if low is not None else "",
        f"{'<' if schema.get('exclusiveMaximum') else '≤'} {high:,}" if high is not None else "",
        f"≤ {schema['maxLength']:,} characters" if "maxLength" in schema and not _is_duration(schema) else "",
        f"≥ {schema['minItems']}" if "minItems" in schema else "",
        f"≤ {schema['maxItems']} entries" if "maxItems" in schema else "",
        f"≤ {schema['maxProperties']} entries" if "maxProperties" in schema else "",
    ]
    return ", ".join(filter(None, parts))


def _presets() -> Iterator[str]:
    rows = [(f"`{preset}`", *_preset(_algorithm(preset))) for preset in get_args(Preset) if preset not in OFFLINE]
    yield "## Presets\n\nDefaults that a preset gives to fields of `spec.algorithm`. A field that a row does not name"
    yield "is 0, false or without effect with that preset. `sft` is supervised fine-tuning and reads none of them;"
    yield "`dpo` learns from given pairs and reads `dpoBeta` alone."
    yield "[algorithms.md](algorithms.md) says what each is for, and which paper its values come from.\n"
    yield table(("Preset", *(f"`{field}`" for field in _COLUMNS), "other fields"), rows)


_COLUMNS = ("advantage", "loss", "aggregation", "kl.placement")


def _preset(fields: dict[str, str]) -> tuple[str, ...]:
    others = [
        f"`{name}` {fields[name]}"
        for name in GOVERNED
        if name not in _COLUMNS and fields.get(name, "0.0") not in ("0.0", "false")
    ]
    return (*(fields[name] for name in _COLUMNS), ", ".join(others))


def _algorithm(preset: str) -> dict[str, str]:
    """The fields that a preset sets, by path."""
    minimal = {"model": {"path": "m"}, "data": {"train": ["t"]}, "training": {"steps": 1}}
    spec = RLJobSpec.model_validate(minimal | {"algorithm": {"preset": preset}})
    algorithm = resolved_document(spec)["algorithm"]
    return {field: _cell(value) for field, value in _flat(algorithm) if field != "preset"}


def _flat(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _cell(value: Any) -> str:
    return json.dumps(value) if isinstance(value, (bool, float, int)) else str(value)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else FILE).write_text(render())
