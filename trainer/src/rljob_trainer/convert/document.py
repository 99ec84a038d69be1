"""Writes a conversion as YAML: the fields that differ from RLJob's defaults, each with its note."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml
from pydantic import BaseModel
from pydantic.alias_generators import to_snake
from pydantic.fields import FieldInfo

from rljob_api.show import TextDumper
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.v1alpha1.presets import LOSS_SETTINGS, PRESETS
from rljob_api.v1alpha1.terms import OFFLINE
from rljob_trainer.convert.conversion import Conversion

_ABSENT: Final = object()
_ALGORITHM: Final = "algorithm."
_CLIPS: Final = {"clip", "dual_clip", "decoupled_clip"}
"""Losses that differ in the bounds only."""

_OWN: Final = {name for name, row in PRESETS.items() if row.positive_nll_coefficient or row.lambda_alpha}
"""Presets with terms that neither verl nor TRL has: what the source says nothing about would be added to it."""


def rendered(conversion: Conversion, source: str) -> str:
    """The RLJob as YAML. What has no field is listed in comments at the end."""
    fields = _with_preset(_written(conversion), conversion.notes)
    lines = [
        f"# Converted from {source} by `rljob convert`.",
        "apiVersion: rljob.dev/v1alpha1",
        "kind: RLJob",
        f"metadata: {{name: {object_name(conversion.name)}}}",
        "spec:",
        *_lines(_nested(fields), conversion.notes, "", 1),
    ]
    for why, keys in conversion.left_by_reason().items():
        lines += ["", f"# Not converted: {why}", *(f"#   {key}" for key in keys)]
    for why, keys in conversion.unneeded.items():
        lines += ["", f"# Not needed: {why}", *(f"#   {key}" for key in sorted(keys))]
    return "\n".join(lines) + "\n"


def object_name(name: str) -> str:
    """`name` as a name of an RLJob: "Qwen2.5_7B" is "qwen2-5-7b"."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    named = plain if re.match("[a-z]", plain) else f"job-{plain}"
    return named[:40].strip("-")


def _written(conversion: Conversion) -> dict[str, Any]:
    """The fields whose value is not the default of RLJob, and those with a note."""
    kept = (
        (name, value)
        for name, value in conversion.fields.items()
        if name in conversion.notes or value != _default(name) or name.startswith(_ALGORITHM)
    )
    order = list(RLJobSpec.model_fields)
    return dict(sorted(kept, key=lambda field: order.index(to_snake(field[0].partition(".")[0]))))


def _default(field: str) -> Any:
    """The default of a field below spec; _ABSENT if there is none."""
    model: Any = RLJobSpec
    *parents, last = field.split(".")
    for part in parents:
        model = _described(model, part).annotation
        if not isinstance(model, type):  # an optional block: it is absent by default
            return _ABSENT
    value = _described(model, last).get_default(call_default_factory=True, validated_data={})
    return _ABSENT if value is None else value


def _described(model: type[BaseModel], alias: str) -> FieldInfo:
    return next(field for field in model.model_fields.values() if field.alias == alias)


def _with_preset(fields: dict[str, Any], notes: Mapping[str, str]) -> dict[str, Any]:
    """`fields` with the preset that needs the fewest other fields of algorithm, and without what it sets.

    A field with a note stays, for the note has to stand above it.
    """
    asked = {name.removeprefix(_ALGORITHM): value for name, value in fields.items() if name.startswith(_ALGORITHM)}
    if not asked or "preset" in asked:
        return fields
    candidates = {preset: _differing(preset, asked) for preset in PRESETS if preset not in {*OFFLINE, *_OWN}}
    preset = min(candidates, key=lambda name: _distance(name, candidates[name]))
    kept = {_ALGORITHM + name: value for name, value in asked.items() if name in candidates[preset]}
    kept |= {name: value for name, value in fields.items() if name.startswith(_ALGORITHM) and name in notes}
    chosen = {"algorithm.preset": preset} | kept
    written: dict[str, Any] = {}
    for name, value in fields.items():
        written |= chosen if name.startswith(_ALGORITHM) else {name: value}
    return written


def _distance(preset: str, differing: Mapping[str, Any]) -> tuple[bool, bool, bool, int]:
    """How little `preset` says about an algorithm: whether its main parts are others, then how many fields are."""
    row = PRESETS[preset]  # type: ignore[index]
    loss = differing.get("loss", row.loss)
    another_loss = loss != row.loss and not {loss, row.loss} <= _CLIPS
    return another_loss, "advantage" in differing, "dynamicSampling.enabled" in differing, len(differing)


def _differing(preset: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    row = PRESETS[preset]  # type: ignore[index]
    loss = LOSS_SETTINGS[asked.get("loss", row.loss)]
    set_by_preset = {**vars(row), **vars(loss)}
    return {
        name: value
        for name, value in asked.items()
        if set_by_preset.get(to_snake(name.replace(".", "_")), _ABSENT) != value
    }


def _nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for name, value in fields.items():
        *parents, last = name.split(".")
        place = spec
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return spec


def _lines(value: Mapping[str, Any], notes: Mapping[str, str], path: str, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for key, item in value.items():
        field = f"{path}.{key}" if path else key
        if note := notes.get(field):
            yield f"{indent}# {note}"
        if isinstance(item, dict) and item and not _is_value(field):
            yield f"{indent}{key}:"
            yield from _lines(item, notes, field, depth + 1)
        elif isinstance(item, list) and any(isinstance(entry, dict) for entry in item):
            yield f"{indent}{key}:"
            yield from (f"{indent}  - {_flow(entry)}" for entry in item)
        else:
            yield f"{indent}{key}: {_flow(item)}"


def _is_value(field: str) -> bool:
    return field in {"rollout.engineArguments", "data.templateArguments"}


def _flow(value: Any) -> str:
    text = yaml.dump(
        value, Dumper=TextDumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return text.removesuffix("\n").removesuffix("\n...")
