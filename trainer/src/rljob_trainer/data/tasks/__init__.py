"""Generated tasks: data without a download.

    synthetic://reverse-text?rows=2000&seed=1&split=train&maxLength=6

rows, seed and split belong to every task; other arguments belong to the task. A hash of an example's key decides its
split, so train and validation never share an exercise, with any seeds. A new task is its file and its entry in TASKS.
"""

import difflib
import random
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from rljob_trainer.data.tasks.addition import Addition
from rljob_trainer.data.tasks.arithmetic import Arithmetic
from rljob_trainer.data.tasks.base import PARAMETERS, Split, Task, to_row
from rljob_trainer.data.tasks.countdown import Countdown
from rljob_trainer.data.tasks.reverse_text import ReverseText
from rljob_trainer.errors import DataError

SCHEME = "synthetic://"
TASKS: dict[str, type[Task]] = {
    "addition": Addition,
    "arithmetic": Arithmetic,
    "countdown": Countdown,
    "reverse-text": ReverseText,
}
VALIDATION_SHARE = 10  # one key in ten belongs to validation
MAX_MISSES = 10_000  # examples of the other split in a row; a split with a tenth of them never has so many


@dataclass(frozen=True, config=PARAMETERS)
class Request:
    """Arguments of every task."""

    rows: Annotated[int, Field(ge=1, le=10_000_000)] = 1000
    seed: Annotated[int, Field(ge=0)] = 0
    split: Split = "train"


def generate(name: str, task: Task, request: Request) -> list[Mapping[str, Any]]:
    """Rows in verl's format, the same for the same arguments on every machine.

    Raises:
        ValueError: the task has (almost) no example of the split.
    """
    rng = random.Random(f"{name}/{request.seed}/{request.split}")
    rows: list[Mapping[str, Any]] = []
    misses = 0
    while len(rows) < request.rows and misses < MAX_MISSES:
        example = task.example(rng)
        if split_of(example.key) == request.split:
            rows.append(to_row(name, len(rows), request.split, task, example))
            misses = 0
        else:
            misses += 1
    if len(rows) == request.rows:
        return rows
    raise ValueError(f"too few examples of {name} with these arguments for split {request.split}; widen them")


def read_synthetic(url: str, field: str) -> Sequence[Mapping[str, Any]]:
    """The rows that a synthetic:// URL names.

    Raises:
        DataError: unknown task or argument, or a value out of bounds.
    """
    with _blaming(url, field):
        return _generated(url)


def check_synthetic(url: str, field: str) -> None:
    """Raise DataError for an invalid URL, without generating rows."""
    for error in synthetic_errors(url, field):
        raise error


def synthetic_errors(url: str, field: str) -> Iterator[DataError]:
    """All errors of the URL, without generating rows."""
    try:
        name, arguments = _split(url)
    except ValueError as error:
        yield DataError(f"{url}: {error}", field=field)
        return
    for message in _wrong(name, arguments):
        yield DataError(f"{url}: {message}", field=field)


@contextmanager
def _blaming(url: str, field: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise DataError(f"{url}: {error}", field=field) from error


@lru_cache(maxsize=4)
def _generated(url: str) -> tuple[Mapping[str, Any], ...]:
    """Cached: a run reads the rows for its tokenizer, its supervised steps and its prompts."""
    name, arguments = _split(url)
    return tuple(generate(name, *parse(name, arguments)))


def _split(url: str) -> tuple[str, dict[str, str]]:
    """The task's name and all arguments. Raises ValueError for an invalid URL."""
    parts = urlsplit(url)
    return parts.netloc, dict(parse_qsl(parts.query, keep_blank_values=True))


def _wrong(name: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """All errors of which `parse` raises the first."""
    if name not in TASKS:
        yield _no_task(name)
        return
    yield from _unknown(name, arguments, _names(Request))
    for kind in (TASKS[name], Request):
        yield from _invalid(kind, {key: value for key, value in arguments.items() if key in _names(kind)})


def parse(name: str, arguments: Mapping[str, Any]) -> tuple[Task, Request]:
    """The task and the common arguments.

    Raises:
        ValueError: the message is for the user.
    """
    common = _names(Request)
    request = {key: value for key, value in arguments.items() if key in common}
    task = make_task(name, {key: value for key, value in arguments.items() if key not in common}, common)
    return task, make_request(**request)


def make_task(name: str, arguments: Mapping[str, Any], common: Collection[str] = ()) -> Task:
    """arguments: the task's own. common: other known names. Raises ValueError with a message for the user."""
    if name not in TASKS:
        raise ValueError(_no_task(name))
    for message in _unknown(name, arguments, common):
        raise ValueError(message)
    task: Task = _validate(TASKS[name], arguments)
    return task


def _no_task(name: str) -> str:
    return f"unknown task {name!r}{suggest(name, TASKS)}; the tasks are {', '.join(TASKS)}"


def _unknown(name: str, arguments: Iterable[str], common: Collection[str]) -> Iterator[str]:
    known = sorted({*common, *_names(TASKS[name])})
    for key in arguments:
        if key not in known:
            yield f"unknown argument {key!r}{suggest(key, known)}; {name} has {', '.join(known)}"


def make_request(**values: Any) -> Request:
    """Raises ValueError with a message for the user."""
    request: Request = _validate(Request, values)
    return request


def describe_tasks() -> list[tuple[str, str, str]]:
    """Name, description and arguments with defaults of each task."""
    return [(name, (kind.__doc__ or "").partition("\n")[0], _defaults(kind)) for name, kind in TASKS.items()]


def _defaults(kind: Any) -> str:
    properties = TypeAdapter(kind).json_schema()["properties"]
    return " ".join(f"{name}={schema['default']}" for name, schema in properties.items())


def _validate(kind: Any, values: Mapping[str, Any]) -> Any:
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        raise ValueError(next(_messages(error))) from error


def _invalid(kind: Any, values: Mapping[str, Any]) -> Iterator[str]:
    try:
        TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        yield from _messages(error)


def _messages(error: ValidationError) -> Iterator[str]:
    for each in error.errors():
        place = ".".join(str(part) for part in each["loc"])
        message = each["msg"].removeprefix("Value error, ")
        yield f"{place}={each['input']}: {message}" if place else message


def _names(kind: Any) -> set[str]:
    return set(TypeAdapter(kind).json_schema()["properties"])


def suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def split_of(key: str) -> Split:
    return "validation" if zlib.crc32(key.encode()) % VALIDATION_SHARE == 0 else "train"
