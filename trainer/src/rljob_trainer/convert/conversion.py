"""One conversion while it runs: what was read, which fields it gives, and what has no field."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """A setting that is one field.

    key: its name in the source. field: the field below spec. default: what the source uses if the setting is absent.
    convert: makes the field's value from the setting's. note: how the meaning differs; "" if it does not.
    """

    key: str
    field: str
    default: Any
    convert: Callable[[Any], Any] = lambda value: value
    note: str = ""


@dataclass(frozen=True, slots=True)
class Only:
    """A setting of which RLJob has one value. key may be a pattern. why: what to do about another value."""

    key: str
    values: tuple[Any, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Settings that change no result and that RLJob decides by itself. keys may be patterns."""

    why: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """All that is known about a source. rules: functions for fields that depend on several settings."""

    rows: tuple[Row, ...]
    only: tuple[Only, ...]
    unneeded: tuple[Unneeded, ...]
    rules: tuple[Callable[["Conversion"], None], ...]


@dataclass(slots=True)
class Conversion:
    """settings: dotted names with their values. fields, notes: by field below spec, in the order of writing.

    left: settings without a field, with the reason. unneeded: settings that need no field, by reason.
    """

    settings: Mapping[str, Any]
    name: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    unneeded: dict[str, list[str]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """The setting's value; the default if it is absent or null."""
        self.seen.add(key)
        value = self.settings.get(key)
        return default if value is None else value

    def number(self, key: str, default: Any = None) -> Any:
        """`get`; a value that is not a number is listed, and the default holds."""
        value = self.get(key, default)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        self.leave(key, "it must be a number")
        return default

    def below(self, prefix: str) -> dict[str, Any]:
        """The settings below `prefix`, by the rest of their names."""
        found = {key: value for key, value in self.settings.items() if key.startswith(prefix + ".")}
        self.seen.update(found, {prefix} if self.settings.get(prefix) == {} else ())
        return {key.removeprefix(prefix + "."): value for key, value in found.items() if value is not None}

    def put(self, field: str, value: Any, note: str = "") -> None:
        if value is not None:
            self.fields[field] = value
            if note:
                self.notes[field] = note

    def leave(self, key: str, why: str) -> None:
        """Record that `key` has no field; a setting that the source does not have is not recorded."""
        self.seen.add(key)
        if self.settings.get(key) is not None:
            self.left[key] = why

    def left_by_reason(self) -> dict[str, list[str]]:
        """Names of what has no field, by the reason."""
        reasons: dict[str, list[str]] = {}
        for key, why in sorted(self.left.items()):
            reasons.setdefault(why, []).append(key)
        return reasons

    def require(self, field: str, why: str) -> None:
        """Record that the reader must set `field`."""
        self.left[f"spec.{field}"] = why


def converted(table: Table, settings: Mapping[str, Any]) -> Conversion:
    """Apply a table. Every setting is mapped, unneeded, or left with a reason."""
    conversion = Conversion(settings)
    for row in table.rows:
        value = conversion.get(row.key, row.default)
        if value is not None:
            conversion.put(row.field, row.convert(value), row.note)
    for rule in table.rules:
        rule(conversion)
    for key in settings:
        if key not in conversion.seen:
            _account_for(table, conversion, key)
    return conversion


def kept_checkpoints(c: Conversion, limit: str) -> None:
    """Write which checkpoints are kept. limit: the source's setting of their number; null and 0 are all of them."""
    count = c.number(limit, 0)
    if count > 0:
        c.put("checkpoint.keepLast", count, "weights, optimizer and position are one checkpoint")
    elif c.fields.get("checkpoint.everySteps") != 0:
        c.put("checkpoint.keepEvery", 1, f"all are kept, as {limit} says: the volume has to hold them")


def _account_for(table: Table, conversion: Conversion, key: str) -> None:
    value = conversion.settings[key]
    for only in table.only:
        if fnmatchcase(key, only.key):
            if value is not None and value not in only.values:
                conversion.leave(key, only.why)
            return
    for unneeded in table.unneeded:
        if any(fnmatchcase(key, pattern) for pattern in unneeded.keys):
            conversion.unneeded.setdefault(unneeded.why, []).append(key)
            return
    conversion.leave(key, "unknown here")
