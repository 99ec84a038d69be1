"""What a reward process and the pool say to each other. Plain values only: both sides import nothing else.

    pool -> process   Setup, then Calls, several in a message, and the next when all of them are answered
    process -> pool   one Loaded for each function, in order, or a LoadFailure;
                      then for each Call one Score or Failure for each function, in order

One answer for each function's call is what lets the pool give each call its own deadline and name who hangs. There are
thousands of calls in a step: what goes to and fro for each is a tuple, which pickles faster than a dataclass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


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
