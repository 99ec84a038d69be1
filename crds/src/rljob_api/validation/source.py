"""YAML as Kubernetes reads it, with the position of every key and value.

PyYAML scans and composes; `scalars` interprets scalars as Kubernetes does.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from rljob_api.validation.problems import Problem
from rljob_api.validation.scalars import plain_scalar

FieldPath = tuple[str | int, ...]

MAX_NODES = 100_000
MAX_DEPTH = 200


class Location(NamedTuple):
    """A position in a file, counted from 1; or an option that wrote a value, which has no lines."""

    source: str
    line: int | None = None
    column: int | None = None


@dataclass(slots=True)
class Document:
    """One YAML document as JSON values.

    keys, values: positions of each field's name and value.
    problems: what Kubernetes would reject. broken: the fields that have no valid value because of them.
    """

    value: Any
    start: Location
    keys: dict[FieldPath, Location] = field(default_factory=dict)
    values: dict[FieldPath, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[FieldPath] = field(default_factory=set)

    def locate(self, path: FieldPath, *, key: bool) -> Location:
        """The position of the key or value of `path`; of its parent's key if the field is absent."""
        if path in self.values:
            return self.keys.get(path, self.values[path]) if key else self.values[path]
        return self.locate(path[:-1], key=True) if path else self.start

    def mark(self, path: FieldPath, location: Location) -> None:
        """Record that `location` wrote the value at `path` and below it."""
        for places in (self.keys, self.values):
            for old in [known for known in places if known[: len(path)] == path]:
                del places[old]
        self.values[path] = location


def dotted(path: FieldPath) -> str:
    """("spec", "rewards", "functions", 0, "name") as "spec.rewards.functions[0].name"."""
    text = ""
    for part in path:
        plain = isinstance(part, str) and re.fullmatch(r"[\w-]+", part)
        text += (f".{part}" if text else str(part)) if plain else f"[{part}]"
    return text


def read_documents(text: str, source: str) -> tuple[list[Document], list[Problem]]:
    """The documents of a file that are not empty, and the errors that prevent reading the rest."""
    documents: list[Document] = []
    problems: list[Problem] = []
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            document = _Builder(source).document(node)
            if document.value is not None or document.problems:
                documents.append(document)
    except yaml.MarkedYAMLError as error:
        problems.append(_unreadable(error, source))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.append(Problem(source, line, 1, "", "YAML does not allow this control character", "Remove it"))
    except (_TooLargeError, RecursionError):
        message = f"has more than {MAX_NODES} values or {MAX_DEPTH} levels, including its aliases"
        problems.append(Problem(source, 1, 1, "", message, "Remove nested anchors"))
    return documents, problems


def read_value(text: str) -> Any:
    """The value of a YAML text; the text itself if it is not valid YAML."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _Builder("").build(node, (), 0)
    except (yaml.YAMLError, _TooLargeError, RecursionError):
        return text


class _TooLargeError(Exception):
    pass


class _Loader(yaml.BaseLoader):
    """Marks each scalar that has neither quotes nor a tag as `plain`."""


_Loader.add_implicit_resolver("plain", re.compile(""), None)

_TAG = "tag:yaml.org,2002:"
_TYPED = {"plain", *(_TAG + name for name in ("bool", "int", "float", "null", "timestamp"))}


class _Builder:
    """Builds the values of one document and records their positions."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.keys: dict[FieldPath, Location] = {}
        self.values: dict[FieldPath, Location] = {}
        self.problems: list[Problem] = []
        self.broken: set[FieldPath] = set()
        self.nodes = 0

    def document(self, node: Node) -> Document:
        value = self.build(node, (), 0)
        return Document(
            value, _location(self.source, node.start_mark), self.keys, self.values, self.problems, self.broken
        )

    def build(self, node: Node, path: FieldPath, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise _TooLargeError
        self.values[path] = _location(self.source, node.start_mark)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode):
            return self._mapping(node, path, depth)
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: FieldPath, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node, merged in self._pairs(node, path, depth):
            key = self._key(key_node, path)
            if key is None or (merged and key in mapping):
                continue
            here = (*path, key)
            if key in mapping:
                first = self.keys[here].line
                self._problem(key_node, here, f"is set twice, first in line {first}", "Remove one of them")
            mapping[key] = self.build(value_node, here, depth + 1)
            self.keys[here] = _location(self.source, key_node.start_mark)
        return mapping

    def _pairs(self, node: MappingNode, path: FieldPath, depth: int) -> Iterator[tuple[Node, Node, bool]]:
        """The pairs of the mapping, then those that `<<` merges into it and that the mapping may override."""
        if depth > MAX_DEPTH:
            raise _TooLargeError
        yield from ((key, value, False) for key, value in node.value if not _is_merge(key))
        for merge in (value for key, value in node.value if _is_merge(key)):
            for source in merge.value if isinstance(merge, SequenceNode) else [merge]:
                if isinstance(source, MappingNode):
                    yield from ((key, value, True) for key, value, _ in self._pairs(source, path, depth + 1))
                else:
                    self._problem(source, (*path, "<<"), "must be an alias of a mapping, such as *defaults")

    def _key(self, node: Node, path: FieldPath) -> str | None:
        key = None
        if isinstance(node, ScalarNode) and (text := _whole(node.value)) is not None:
            key = plain_scalar(text) if node.tag in _TYPED else text
        if key is None:
            self._problem(node, path, "a key must be text", "Write a name before the ':'")
            return None
        return key if isinstance(key, str) else json.dumps(key)

    def _scalar(self, node: Node, path: FieldPath) -> Any:
        if node.tag not in {*_TYPED, _TAG + "str"}:
            self._problem(node, path, f"Kubernetes does not support the YAML tag {node.tag}", "Remove the tag")
        text = _whole(node.value)
        if text is None:
            self._problem(
                node, path, "contains half of a surrogate pair: an escape from D800 to DFFF without its other half"
            )
            return None
        value = plain_scalar(text) if node.tag in _TYPED else text
        if isinstance(value, float) and not math.isfinite(value):
            self._problem(node, path, f"must be a finite number; got {node.value}")
            return None
        return value

    def _problem(self, node: Node, path: FieldPath, message: str, remedy: str = "") -> None:
        location = _location(self.source, node.start_mark)
        self.problems.append(Problem(*location, dotted(path), message, remedy))
        self.broken.add(path)


def _whole(text: str) -> str | None:
    """Join surrogate pairs, which JSON escapes and YAML keep apart; None if a half is missing."""
    if text.isascii():
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None


def _is_merge(key: Node) -> bool:
    return bool(key.tag == "plain" and key.value == "<<")


def _location(source: str, mark: yaml.Mark) -> Location:
    return Location(source, mark.line + 1, mark.column + 1)


_YAML_ERRORS = (
    ("'\\t'", "a tab cannot indent YAML", "Use spaces"),
    (
        "mapping values are not allowed",
        "a line has a second ':' or too much indentation",
        "Quote text with ': ' in it",
    ),
    ("could not find expected ':'", "a key without ':'", "Write KEY: VALUE, and quote text of several lines"),
    ("expected <block end>", "the indentation of this line matches no block above it", "Indent it like its neighbours"),
    ("expected ',' or ']'", "a list in [ ] is not closed, or lacks a comma", "Close it with ]"),
    ("expected ',' or '}'", "a mapping in { } is not closed, or lacks a comma", "Close it with }"),
    (
        "expected the node content",
        "a value is missing, or a [ or { is not closed",
        "Write the value, or close the bracket",
    ),
    ("while scanning a quoted scalar", "a quote is not closed", "Close it; inside the text, double it"),
    ("found undefined alias", "an alias has no anchor", "Define &NAME before *NAME"),
    ("found duplicate anchor", "an anchor is defined twice", "Rename one"),
    ("that cannot start any token", "text cannot begin with this character", "Put the text in quotes"),
)


def _unreadable(error: yaml.MarkedYAMLError, source: str) -> Problem:
    said = f"{error.context} {error.problem}"
    open_at = error.context_mark if "while scanning" in said or "flow" in said else None
    mark = open_at or error.problem_mark or yaml.Mark(source, 0, 0, 0, None, 0)
    for part, message, remedy in _YAML_ERRORS:
        if part in said:
            return Problem(*_location(source, mark), "", f"not readable as YAML: {message}", remedy)
    return Problem(*_location(source, mark), "", f"not readable as YAML: {error.problem}")
