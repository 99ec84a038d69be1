"""What a reward process and the pool say to each other. Plain values only: both sides import nothing else.

    pool -> process   Setup, then Calls, one at a time
    process -> pool   one Loaded for each function, in order, or a LoadFailure;
                      then for each Call one Score or Failure for each function, in order

One message for each function's call is what lets the pool give each call its own deadline and name who hangs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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


@dataclass(frozen=True, slots=True)
class Call:
    """One response to score with every function."""

    data_source: str
    solution_str: str
    ground_truth: Any
    extra_info: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Score:
    """What one function returned. numbers: the other numbers of a mapping."""

    value: float
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """One function raised, or returned what is no reward. reason: for a person, with the line."""

    reason: str
