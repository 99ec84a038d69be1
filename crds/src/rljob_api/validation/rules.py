"""The CEL rules of a schema, evaluated as the API server evaluates them: on the object with its defaults."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from rljob_api.schema import RULES, Schema, judges_updates
from rljob_api.validation.cel import compiled
from rljob_api.validation.source import FieldPath
from rljob_api.validation.structure import Finding


def rule_findings(
    schema: Schema, value: Any, broken: Collection[FieldPath] = (), path: FieldPath = ()
) -> Iterator[Finding]:
    """The rules that `value` breaks, each at the field that it names; rules about changes are skipped.

    broken: fields that are invalid or missing. A rule that reads one of them is skipped, because its result means
    nothing.
    """
    return _findings(schema, value, path, _Unsound.of(broken))


@dataclass(frozen=True, slots=True)
class _Unsound:
    """fields: the broken fields. holders: these fields and all their parents."""

    fields: frozenset[FieldPath]
    holders: frozenset[FieldPath]

    @classmethod
    def of(cls, broken: Collection[FieldPath]) -> "_Unsound":
        return cls(frozenset(broken), frozenset(path[:end] for path in broken for end in range(len(path) + 1)))

    def reaches(self, path: FieldPath) -> bool:
        """Whether `path`, one of its parents or one of its parts is broken."""
        return path in self.holders or any(path[:end] in self.fields for end in range(len(path)))


def _findings(schema: Schema, value: Any, path: FieldPath, unsound: _Unsound) -> Iterator[Finding]:
    if isinstance(value, dict):
        for rule in schema.get(RULES, ()):
            if judges_updates(rule) or any(unsound.reaches((*path, *read)) for read in _reads(rule["rule"])):
                continue
            if not compiled(rule["rule"]).execute({"self": value}):
                yield Finding((*path, *_parts(rule.get("fieldPath", ""))), rule["message"])
        for name, field in schema.get("properties", {}).items():
            yield from _findings(field, value.get(name), (*path, name), unsound)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _findings(schema.get("items", {}), item, (*path, index), unsound)


@cache
def _reads(rule: str) -> tuple[FieldPath, ...]:
    """The fields that a rule reads: `self.a.b.size() > 0` reads ("a", "b")."""
    return tuple(_parts(match[1]) for match in re.finditer(r"\bself((?:\.[A-Za-z_]\w*(?![\w(]))+)", rule))


def _parts(path: str) -> FieldPath:
    return tuple(path.split(".")[1:])
