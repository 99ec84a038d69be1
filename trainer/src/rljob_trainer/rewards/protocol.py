"""What a reward process and the pool say to each other. Plain values only: both sides import nothing else.

    pool -> process   Setup, then Calls, several in a message, and the next when all of them are answered
    process -> pool   one Loaded for each function, in order, or a LoadFailure;
                      then for each Call one Score or Failure for each function, in order

One answer for each function's call is what lets the pool give each call its own deadline and name who hangs. There are
thousands of calls in a step: what goes to and fro for each is a tuple, which pickles faster than a dataclass, and the
pool takes all answers that are there in one read.
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
    """Everything a process needs to know. base_dir: where relative paths start."""

    functions: Sequence[FunctionSetup]
    base_dir: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """One function is loaded."""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """A function cannot be loaded. field: the spec's field to blame."""

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
    """One function raised, or returned what is no reward. reason: for a person, with the line."""

    reason: str


def send(fd: int, message: object) -> None:
    """Write a message that an Inbox reads."""
    data = pickle.dumps(message)
    left = memoryview(_LENGTH.pack(len(data)) + data)
    while left:
        left = left[os.write(fd, left) :]


class Inbox:
    """Messages that come through a socket, in their order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = bytearray()
        self._messages: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._messages)

    def next(self) -> Any:
        """The first of those that are there."""
        return self._messages.popleft()

    def receive(self) -> None:
        """Read once. Raises EOFError where the process has closed its end."""
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
