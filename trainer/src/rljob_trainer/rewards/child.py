"""A reward process: python -m rljob_trainer.rewards.child FD PARENT_PID. Imports the user's code and little else.

It ends with the thread that started it: an idle process reads the end of the socket, the kernel kills a busy one.
"""

import asyncio
import ctypes
import inspect
import io
import operator
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from rljob_trainer.rewards.code import describe
from rljob_trainer.rewards.load import LoadError, load, register_files
from rljob_trainer.rewards.private_imports import public, register_again
from rljob_trainer.rewards.protocol import Call, Failure, FunctionSetup, Loaded, Score, Setup, send
from rljob_trainer.rewards.signature import ComputeScore

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_T = TypeVar("_T")
_LARGEST = 1e30  # finite in float32 with any weight


def main() -> None:
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what its children leave behind stays below it, where the pool finds it
    if os.getppid() != parent:  # the parent died before prctl
        return
    del sys.argv[1:]  # reward code may parse it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    connection = Connection(fd)
    try:
        serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the pool ended
        return


def serve(connection: Connection) -> None:
    """Load, then answer calls until the pool closes the connection."""
    setup: Setup = connection.recv()
    base_dir = Path(setup.base_dir)
    scorers: list[_Scorer] = []
    register_files(setup.functions, base_dir)
    for function in setup.functions:
        try:
            scorers.append(_Scorer(load(function, base_dir, function.field), function))
        except LoadError as error:
            send(connection.fileno(), error.failure)
            return
        send(connection.fileno(), Loaded(scorers[-1].batch))
    while True:
        calls: Sequence[Call] = connection.recv()
        answers = [scorer.begin(calls) for scorer in scorers]
        for index, call in enumerate(calls):
            for scorer, answer in zip(scorers, answers, strict=True):
                if scorer.setup.scores(call.data_source):
                    send(connection.fileno(), answer(index))


class _Scorer:
    """Calls one function and contains what it does."""

    def __init__(self, function: ComputeScore, setup: FunctionSetup) -> None:
        self._function, self.batch, self.setup = function, function.batch, setup

    def begin(self, calls: Sequence[Call]) -> Callable[[int], Score | Failure]:
        """Scores call `index` of a message when it is asked to."""
        if not self.batch:
            return lambda index: self._contained(lambda: to_score(self._result(self._function(calls[index]))))
        answers: list[Score | Failure] = []

        def answer(index: int) -> Score | Failure:
            if not answers:
                answers.extend(self._many(calls))
            return answers[index]

        return answer

    def _many(self, calls: Sequence[Call]) -> list[Score | Failure]:
        def score() -> list[Score | Failure]:
            results = list(self._result(self._function.many(calls)))
            if len(results) != len(calls):
                return [Failure(f"returned {len(results)} scores for {len(calls)} responses")] * len(calls)
            return [to_score(self._result(result)) for result in results]

        scored = self._contained(score)
        return scored if isinstance(scored, list) else [scored] * len(calls)

    def _contained(self, work: Callable[[], _T]) -> _T | Failure:
        try:
            return work()
        except BaseException as error:  # noqa: BLE001  every error of user code is reported
            return Failure(f"raised {public(describe(error))}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that it left would end a later call
            with suppress(Exception):  # closed, or None
                sys.stdout.flush()

    def _result(self, returned: Any) -> Any:
        return self._loop.run(_awaited(returned)) if inspect.isawaitable(returned) else returned

    @cached_property
    def _loop(self) -> asyncio.Runner:
        """One event loop for all calls, because clients that a function keeps belong to their loop."""
        return asyncio.Runner()


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


def to_score(result: Any) -> Score | Failure:
    """A Score of a number, or of a mapping with a number `score`; keeps the mapping's other numbers and its spans."""
    if not isinstance(result, Mapping):
        value = _number(result)
        return _checked({"score": value}) if value is not None else Failure(f"returned {_short(result)}, not a number")
    if _number(result.get("score")) is None:
        return Failure(f"returned {_short(result)}, a mapping without a number `score`")
    spans = _spans(result.get("spans"))
    if isinstance(spans, Failure):
        return spans
    scored = _checked({str(name): number for name, value in result.items() if (number := _number(value)) is not None})
    return scored._replace(spans=spans) if spans and isinstance(scored, Score) else scored


def _spans(value: Any) -> tuple[tuple[int, float], ...] | Failure:
    """Pairs of a whole number and a finite one; none of another value than a list, which is not meant as spans."""
    if not isinstance(value, list | tuple):
        return ()
    found = []
    for each in value:
        try:
            end, number = each
            found.append((operator.index(end), float(number)))
        except (TypeError, ValueError, OverflowError):
            return Failure(f"returned the span {_short(each)}, not a pair (end character, value)")
        if not abs(found[-1][1]) <= _LARGEST:
            return Failure(f"returned the span {_short(each)}, whose value is not finite")
    return tuple(found)


def _checked(numbers: dict[str, float]) -> Score | Failure:
    """The score must be finite; another number that is not is left out."""
    score = numbers.pop("score")
    if not abs(score) <= _LARGEST:  # also false for NaN
        return Failure(f"returned {score}")
    return Score(score, {name: number for name, number in numbers.items() if abs(number) <= _LARGEST})


def _number(value: Any) -> float | None:
    """A Python, numpy or torch number as float; None for anything else."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of several numbers, an integer above 1e308
        return None


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    text = f"{text} ({type(value).__name__})" if type(value).__module__ != "builtins" else text
    return text if len(text) <= 80 else f"{text[:77]}..."


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a process that multiprocessing spawned from reward code
    register_again()
