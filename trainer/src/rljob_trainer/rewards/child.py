"""A reward process: python -m rljob_trainer.rewards.child FD PARENT_PID. Imports the user's code and little else.

It ends with the thread that started it: an idle process reads the end of the socket, the kernel kills a busy one.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rljob_trainer.rewards.code import describe
from rljob_trainer.rewards.load import ComputeScore, LoadError, load
from rljob_trainer.rewards.protocol import Call, Failure, Loaded, Score, Setup, send

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LARGEST = 1e30  # finite in float32 with any weight


def main() -> None:
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl
        return
    connection = Connection(fd)
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the pool ended
        return


def serve(connection: Connection) -> None:
    """Load, then answer calls until the pool closes the connection."""
    setup: Setup = connection.recv()
    loaded: list[ComputeScore] = []
    for i, function in enumerate(setup.functions):
        try:
            loaded.append(load(function, Path(setup.base_dir), f"spec.rewards.functions[{i}]"))
        except LoadError as error:
            send(connection.fileno(), error.failure)
            return
        send(connection.fileno(), Loaded())
    while True:
        calls: Sequence[Call] = connection.recv()
        for call in calls:
            for compute_score in loaded:
                send(connection.fileno(), _answer(compute_score, call))


def _answer(function: ComputeScore, call: Call) -> Score | Failure:
    try:
        result = function(call)
    except (Exception, SystemExit) as error:  # noqa: BLE001  every error of user code is reported
        return Failure(f"raised {describe(error)}")
    finally:
        sys.stdout.flush()
    return to_score(result)


def to_score(result: Any) -> Score | Failure:
    """A Score of a number, or of a mapping with a number `score`; keeps the mapping's other numbers."""
    if not isinstance(result, Mapping):
        value = _number(result)
        return _checked({"score": value}) if value is not None else Failure(f"returned {_short(result)}, not a number")
    if _number(result.get("score")) is None:
        return Failure(f"returned {_short(result)}, a mapping without a number `score`")
    return _checked({str(name): number for name, value in result.items() if (number := _number(value)) is not None})


def _checked(numbers: dict[str, float]) -> Score | Failure:
    for name, number in numbers.items():
        if not abs(number) <= _LARGEST:  # also false for NaN
            return Failure(f"returned {number}" if name == "score" else f"returned {name}: {number}")
    return Score(numbers.pop("score"), numbers)


def _number(value: Any) -> float | None:
    """A Python, numpy or torch number as float; None for anything else."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of several numbers, an integer above 1e308
        return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


if __name__ == "__main__":
    main()
