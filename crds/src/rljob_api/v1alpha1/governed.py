"""CEL for fields that a preset fills."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any


def governed(field: str, values: Mapping[Any, object], owner: str = "self") -> str:
    """CEL for the value that `field` of `owner` ("loss", "kl.placement") has once its preset has filled it.

    values: what each preset sets it to: text, a number or a bool.
    """
    return f"(has({owner}.{field}) ? {owner}.{field} : {of_preset_alone(values, owner)})"


def of_preset_alone(values: Mapping[Any, object], owner: str = "self") -> str:
    """CEL for what the preset of `owner` stands for, whatever the field says."""
    presets: dict[str, list[str]] = defaultdict(list)
    for preset, value in values.items():
        presets[str(value).lower() if isinstance(value, bool) else repr(value)].append(preset)
    common = max(presets, key=lambda value: len(presets[value]))
    others = [f"{owner}.preset in {names} ? {value} : " for value, names in presets.items() if value != common]
    return f"({''.join(others)}{common})"
