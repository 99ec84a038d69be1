"""Checks the rewards of a spec before anything starts, without running code."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rljob_api.v1alpha1.rewards import RewardFunction, Rewards
from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.code import CodeError, find_code
from rljob_trainer.rewards.load import builtin_errors
from rljob_trainer.rewards.protocol import covers


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


def check_data_sources(rewards: Rewards, sources: Callable[[], Iterable[str]]) -> None:
    """Raise RewardError if no reward scores one of the data's sources. sources: called only if that can be."""
    patterns = [function.data_sources for function in rewards.functions]
    if not patterns or rewards.models or not all(patterns):
        return
    missing = [source for source in sources() if not any(covers(each, source) for each in patterns)]
    if missing:
        message = f"no function scores rows whose data_source is {missing[0]!r}; add it to the dataSources of one"
        raise RewardError(message, field="spec.rewards.functions")
