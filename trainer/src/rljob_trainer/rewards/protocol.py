"""Messages between a reward process and the pool, as plain values without further imports.

    pool -> process   Setup, then several Calls in a message, and the next message once all are answered
    process -> pool   one Loaded for each function, in order, or a LoadFailure;
                      then for each Call one Score or Failure for each function, in order

With one answer for each function's call, the pool can give each call its own deadline and name the function that hangs.
A step makes thousands of calls, so calls and answers are tuples, which pickle faster than dataclasses, and the pool
reads all available answers at once.
"""

import os
import pickle
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

_LENGTH = struct.Struct("!Q")
_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class FunctionSetup:
    """One of rewards.functions."""

    name: str
    builtin: str | None
    path: str | None
    module: str | None
    source: str | None
    function: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Setup:
    """Configures a process. base_dir: base of relative paths."""

    functions: Sequence[FunctionSetup]
    base_dir: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """One function is loaded."""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A function cannot be loaded. field: the spec's field at fault."""

    message: str
    field: str


class Call(NamedTuple):
    """One response to score with every function."""

    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: Mapping[str, Any]


class Score(NamedTuple):
    """What one function returned. numbers: the other numbers of a mapping."""

    value: float
    numbers: Mapping[str, float] = {}


class Failure(NamedTuple):
    """One function raised or returned no valid reward. reason: includes the line of code."""

    reason: str


def send(fd: int, message: object) -> None:
    """Write a message that an Inbox reads."""
    data = pickle.dumps(message)
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(fd, left) :]


class Inbox:
    """Messages received from a socket, in order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = bytearray()
        self._messages: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._messages)

    def next(self) -> Any:
        """The first received message."""
        return self._messages.popleft()

    def receive(self) -> None:
        """Read once. Raises EOFError if the process has closed its end."""
        if not (data := os.read(self._fd, _READ)):
            raise EOFError
        self._read += data
        start = 0
        while (begin := start + _LENGTH.size) <= len(self._read):
            end = begin + _LENGTH.unpack_from(self._read, start)[0]
            if end > len(self._read):
                break
            self._messages.append(pickle.loads(memoryview(self._read)[begin:end]))
            start = end
        del self._read[:start]
