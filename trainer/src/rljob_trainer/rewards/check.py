"""Checks the reward code of a spec before anything starts, without running it."""

import warnings
from collections.abc import Iterator
from pathlib import Path

from rljob_api.v1alpha1.rewards import RewardFunction
from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.code import CodeError, find_code
from rljob_trainer.rewards.load import builtin_errors


def check_code(function: RewardFunction, base_dir: Path, field: str) -> None:
    """Raise RewardError if code is missing, cannot be compiled or lacks the function, or a builtin rejects arguments.

    field: the function's field ("spec.rewards.functions[0]"). Only a reward process can find a module.
    """
    for error in code_errors(function, base_dir, field):
        raise error


def code_errors(function: RewardFunction, base_dir: Path, field: str) -> Iterator[RewardError]:
    """All errors that check_code could raise."""
    if function.builtin is not None:
        for message in builtin_errors(function.builtin, function.arguments):
            yield RewardError(message, field=f"{field}.arguments")
    if function.path is None and function.source is None:
        return
    part = "source" if function.path is None else "path"
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about the user's code
            code = find_code(function.path, function.source, base_dir, field)
            code.compile()
            part = "function"
            code.check_defines(function.function)
    except CodeError as error:
        yield RewardError(str(error), field=f"{field}.{part}")
