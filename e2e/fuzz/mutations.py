"""Documents that people, templates and tools get wrong: good ones with one to three mutations, drawn by a seed."""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rljob_api.schema import Schema, structural_schema
from rljob_api.v1alpha1 import RLJob

Node = dict[str, Any] | list[Any]


@dataclass(frozen=True)
class Place:
    """A value within a document: `node[key]`."""

    node: Any
    key: Any

    @property
    def value(self) -> Any:
        return self.node[self.key]

    def put(self, value: Any) -> None:
        self.node[self.key] = value


@dataclass(frozen=True)
class Mutant:
    """mutations: their names, in order."""

    number: int
    mutations: tuple[str, ...]
    document: Any

    def __str__(self) -> str:
        return f"{self.number} ({', '.join(self.mutations)})"


OTHER_TYPES: tuple[Any, ...] = (
    None,
    True,
    0,
    7,
    -1,
    1.5,
    "",
    "x",
    "7",
    [],
    {},
    [None],
    [1],
    [[]],
    {"a": 1},
    {"name": "a"},
)
NUMBERS = (-1, 0, 1, 2, 3, 7, 1e-30, 0.5, -0.5, 1.0, 1e30, 1e308, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64)
TEXTS = (
    "", " ", "a b", "ünïcødé", "日本語", "a\nb", "a\tb", "\u0000", "\u202eabc", "😀" * 40, "../..", "/", "~", "$(HOME)",
    "{{ x }}", "null", "true", "1e9", "0x10", "010", "1h", "-1h", "1d", "9" * 30 + "h", "0s", "1.5h", "10Gi", "-1Gi",
    "1e3", "A" * 64, "-a", "a-", "*", "&a", "!!int 3", "#", "'", '"', "\\", "%s", "\u00a0", "\ud7ff", "K" * 300,
)  # fmt: skip
HUGE = ("x" * 70_000, ["x"] * 3_000, {f"k{number}": "v" for number in range(3_000)})


REQUEST_BYTES = 3 << 20
"""Of more the API server reads nothing: it closes the connection while the client is still sending."""


def mutants(seeds: Sequence[Any], count: int, seed: int) -> Iterator[Mutant]:
    for number in range(count):
        random = Random(f"{seed}-{number}")
        while not _fits(mutant := _mutant(random, number, seeds)):
            pass
        yield mutant


def _mutant(random: Random, number: int, seeds: Sequence[Any]) -> Mutant:
    document = copy.deepcopy(random.choice(seeds))
    names = [_mutate(random, document) for _ in range(random.choice((1, 1, 1, 2, 3)))]
    return Mutant(number, tuple(names), document)


def _fits(mutant: Mutant) -> bool:
    return len(json.dumps(mutant.document)) < REQUEST_BYTES


def _mutate(random: Random, document: Any) -> str:
    name = random.choice(tuple(MUTATIONS))
    MUTATIONS[name](random, document)
    return name


def _places(value: Any) -> Iterator[Place]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield Place(value, key)
        yield from _places(value[key])


def _any(random: Random, document: Any, *types: type) -> Place:
    """A place in the spec, and at times one above it; of those types where there is one."""
    within = document if random.random() < 0.1 or not isinstance(document.get("spec"), dict) else document["spec"]
    places = list(_places(within)) or list(_places(document))
    return random.choice([place for place in places if isinstance(place.value, types)] or places)


def _drop(random: Random, document: Any) -> None:
    place = _any(random, document)
    del place.node[place.key]


def _rename(random: Random, document: Any) -> None:
    place = random.choice([place for place in _places(document) if isinstance(place.key, str)])
    key = str(place.key)
    other = random.choice((key.upper(), key + "s", key[:-1] or "x", key.lower(), f"{key}_", key[::-1], "ключ", ""))
    place.node[other] = place.node.pop(place.key)


def _retype(random: Random, document: Any) -> None:
    _any(random, document).put(copy.deepcopy(random.choice(OTHER_TYPES)))


def _forget(random: Random, document: Any) -> None:
    _any(random, document).put(None)


def _range(random: Random, document: Any) -> None:
    _any(random, document, int, float).put(random.choice(NUMBERS))


def _text(random: Random, document: Any) -> None:
    _any(random, document, str).put(random.choice(TEXTS))


def _huge(random: Random, document: Any) -> None:
    _any(random, document).put(copy.deepcopy(random.choice(HUGE)))


def _nest(random: Random, document: Any) -> None:
    place = _any(random, document)
    for _ in range(random.choice((1, 5, 60))):
        place.put({"a": place.value} if random.random() < 0.5 else [place.value])


def _repeat(random: Random, document: Any) -> None:
    """An entry of a list comes again: as it is, or without its key, or with another's."""
    entries = _any(random, document, list).value
    if not isinstance(entries, list) or not entries:
        return
    again = copy.deepcopy(random.choice(entries))
    if isinstance(again, dict) and random.random() < 0.5:
        again["name"] = random.choice((None, "", 3, "other"))
    entries.extend([again] * random.choice((1, 1, 200)))


def _grow(random: Random, document: Any) -> None:
    """A field that the schema knows, set to something of its type: alone it may be right, and wrong beside others."""
    node, schema = document, structural_schema(RLJob)
    while True:
        name = random.choice([field for field in schema["properties"] if field != "status"])
        schema = schema["properties"][name]
        if "properties" not in schema or random.random() < 0.1:
            break
        node = node.setdefault(name, {}) if isinstance(node, dict) else {}
    if isinstance(node, dict):
        node[name] = _of(random, schema)


def _of(random: Random, schema: Schema) -> Any:
    """Something of that type, often just within its bounds."""
    values: Sequence[Any] = OTHER_TYPES
    match schema:
        case {"enum": enum}:
            values = enum
        case {"type": "boolean"}:
            values = (False, True)
        case {"type": "integer" | "number"}:
            values = [*(schema[bound] for bound in ("minimum", "maximum", "default") if bound in schema), *NUMBERS]
        case {"type": "string"}:
            values = [schema.get("default", "a"), *TEXTS]
        case {"type": "array", "items": items}:
            return [_of(random, items) for _ in range(random.choice((0, 1, 2)))]
        case {"type": "object", "properties": fields}:
            required = schema.get("required", ())
            chosen = [name for name in fields if name in required or random.random() < 0.3]
            return {name: _of(random, fields[name]) for name in chosen}
    return copy.deepcopy(random.choice(values))


MUTATIONS: dict[str, Callable[[Random, Any], None]] = {
    "dropped": _drop,
    "renamed": _rename,
    "another type": _retype,
    "null": _forget,
    "out of range": _range,
    "odd text": _text,
    "huge": _huge,
    "nested": _nest,
    "repeated": _repeat,
    "another field": _grow,
    "a field beside it": _grow,
}
"""Fields that the schema knows come twice as often: they get furthest."""
