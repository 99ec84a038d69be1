"""Reward code of a spec, judged before anything starts: nothing of it runs."""

import warnings
from pathlib import Path

from rljob_api.v1alpha1.rewards import RewardFunction
from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.code import CodeError, find_code
from rljob_trainer.rewards.load import LoadError, load_builtin


def check_code(function: RewardFunction, base_dir: Path, field: str) -> None:
    """Raises RewardError where its code cannot be found or compiled, or does not define the function, or where its
    builtin does not take its arguments.

    field: its place in the spec ("spec.rewards.functions[0]"). A module is for a reward process to find.
    """
    if function.builtin is not None:
        try:
            load_builtin(function.builtin, function.arguments, field)
        except LoadError as error:
            raise RewardError(error.failure.message, field=error.failure.field) from error
    if function.path is None and function.source is None:
        return
    part = "source" if function.path is None else "path"
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's code, which is none of ours to print
            code = find_code(function.path, function.source, base_dir, field)
            code.compile()
            part = "function"
            code.check_defines(function.function)
    except CodeError as error:
        raise RewardError(str(error), field=f"{field}.{part}") from error
