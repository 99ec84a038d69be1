"""Messages between a reward process and the pool, as plain values without further imports.

    pool -> process   Setup, then several Calls in a message, and the next message once all are answered
    process -> pool   one Loaded for each function, in order, or a LoadFailure;
                      then for each Call one Score or Failure for each function that scores it, in order

With one answer for each function's call, the pool can give each call its own deadline and name the function that hangs.
A function that scores groups gets all Calls of a message at once; its first answer comes after that one call.

Answers are JSON: the pool unpickles nothing that reward code can send. A step makes thousands of calls, so calls and
answers are tuples, and the pool reads all available answers at once.
"""

import json
import math
import os
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

_LENGTH = struct.Struct("!Q")
_READ = 1 << 16
_LARGEST = 1 << 26
"""Bytes of an answer."""


def covers(patterns: Sequence[str], data_source: str) -> bool:
    """Whether rewards.functions[].dataSources has that data source; an empty list has all."""
    return not patterns or data_source in patterns or any(fnmatchcase(data_source, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class FunctionSetup:
    """One of rewards.functions. place: its index there. data_sources: as in the spec."""

    name: str
    builtin: str | None
    path: str | None
    module: str | None
    source: str | None
    function: str
    arguments: Mapping[str, Any]
    data_sources: Sequence[str] = ()
    place: int = 0

    @property
    def field(self) -> str:
        return f"spec.rewards.functions[{self.place}]"

    def scores(self, data_source: str) -> bool:
        """Whether the function scores responses to rows of that data source."""
        return covers(self.data_sources, data_source)


@dataclass(frozen=True, slots=True)
class Setup:
    """Configures a process. base_dir: base of relative paths. environment: variables that its functions may see."""

    functions: Sequence[FunctionSetup]
    base_dir: str
    environment: Sequence[str] = ()


class Loaded(NamedTuple):
    """One function is loaded. batch: it scores groups, so a message has to be one group."""

    batch: bool = False


class LoadFailure(NamedTuple):
    """A function cannot be loaded. field: the spec's field at fault."""

    message: str
    field: str


class Call(NamedTuple):
    """One response to score with every function for its data source."""

    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: Mapping[str, Any]


class Score(NamedTuple):
    """What one function returned. numbers: the other numbers of a mapping. spans: rewards inside the response."""

    value: float
    numbers: Mapping[str, float] = {}
    spans: Sequence[tuple[int, float]] = ()


class Failure(NamedTuple):
    """One function raised or returned no valid reward. reason: includes the line of code."""

    reason: str


_write, _dumps = os.write, json.dumps  # reward code may replace them, as guards of programs under test do

Answer = Loaded | LoadFailure | Score | Failure


def send(fd: int, answer: Answer) -> None:
    """Write an answer that an Inbox reads."""
    data = _dumps([type(answer).__name__, *answer]).encode()
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[_write(fd, left) :]


def _parse(data: bytes) -> Answer:
    """Raises ValueError for what is no answer: reward code can write to the connection, too."""
    from rljob_api.printable import printable  # not in the reward process, which starts with few imports

    try:
        match json.loads(data):
            case ["Score", float(value), dict(numbers), list(spans)] if all(
                map(math.isfinite, (value, *numbers.values(), *(number for _, number in spans)))
            ):
                named = {str(name): float(number) for name, number in numbers.items()}
                return Score(value, named, tuple((int(end), float(number)) for end, number in spans))
            case ["Failure", str(reason)]:
                return Failure(printable(reason))
            case ["Loaded", bool(batch)]:
                return Loaded(batch)
            case ["LoadFailure", str(message), str(field)]:
                return LoadFailure(printable(message), field)
    except (TypeError, RecursionError, OverflowError) as error:
        raise ValueError("no answer") from error
    raise ValueError("no answer")


class Inbox:
    """Answers received from a socket, in order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = bytearray()
        self._answers: deque[Answer] = deque()

    def __bool__(self) -> bool:
        return bool(self._answers)

    def next(self) -> Answer:
        """The first received answer."""
        return self._answers.popleft()

    def receive(self) -> None:
        """Read once. Raises EOFError if the process has closed its end, ValueError for what is no answer."""
        if not (data := os.read(self._fd, _READ)):
            raise EOFError
        self._read += data
        start = 0
        while (begin := start + _LENGTH.size) <= len(self._read):
            end = begin + (length := _LENGTH.unpack_from(self._read, start)[0])
            if length > _LARGEST:
                raise ValueError("no answer")
            if end > len(self._read):
                break
            self._answers.append(_parse(bytes(memoryview(self._read)[begin:end])))
            start = end
        del self._read[:start]
