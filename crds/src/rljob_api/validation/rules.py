"""The CEL rules of a schema, evaluated as the API server evaluates them: on the object with its defaults."""

import re
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any

from rljob_api.schema import RULES, Schema, judges_updates
from rljob_api.validation.cel import compiled
from rljob_api.validation.source import FieldPath
from rljob_api.validation.structure import Finding


def rule_findings(
    schema: Schema, value: Any, broken: Collection[FieldPath] = (), path: FieldPath = ()
) -> Iterator[Finding]:
    """The rules that `value` breaks, each at the field it names; those that judge changes have nothing to compare.

    broken: fields known to be wrong or missing. A rule that reads one of them is left out: it has no sound answer.
    """
    if isinstance(value, dict):
        for rule in schema.get(RULES, ()):
            if judges_updates(rule) or _reads_any(rule["rule"], path, broken):
                continue
            if not compiled(rule["rule"]).execute({"self": value}):
                yield Finding((*path, *_parts(rule.get("fieldPath", ""))), rule["message"])
        for name, field in schema.get("properties", {}).items():
            yield from rule_findings(field, value.get(name), broken, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from rule_findings(schema.get("items", {}), item, broken, (*path, index))


def _reads_any(rule: str, path: FieldPath, broken: Collection[FieldPath]) -> bool:
    return any(_overlap((*path, *read), wrong) for read in _reads(rule) for wrong in broken)


def _overlap(one: FieldPath, other: FieldPath) -> bool:
    """Whether one path leads to the other, or they are the same."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


@cache
def _reads(rule: str) -> tuple[FieldPath, ...]:
    """The fields that a rule reads: `self.a.b.size() > 0` reads ("a", "b")."""
    return tuple(_parts(match[1]) for match in re.finditer(r"\bself((?:\.[A-Za-z_]\w*(?![\w(]))+)", rule))


def _parts(path: str) -> FieldPath:
    return tuple(path.split(".")[1:])
