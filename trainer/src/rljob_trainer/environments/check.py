"""Checks spec.environment before anything starts, without running code."""

import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rljob_api.v1alpha1 import Environment
from rljob_trainer.environments.builtin import ToolUnusable
from rljob_trainer.environments.builtin.search import read_corpus
from rljob_trainer.environments.entry import DEFAULTS, FIELD
from rljob_trainer.errors import EnvironmentFailed
from rljob_trainer.paths import locate
from rljob_trainer.rewards.code import CodeError, RewardCode, find_code


def check_environment(environment: Environment, base_dir: Path) -> None:
    """Raise EnvironmentFailed for the first error. Only an environment process can find a module."""
    for error in environment_errors(environment, base_dir):
        raise error


def environment_errors(environment: Environment, base_dir: Path) -> Iterator[EnvironmentFailed]:
    """All errors of the code that can be seen without running it."""
    if environment.tools and environment.arguments:
        message = "the policy gives the arguments of tools: remove arguments, or set entry"
        yield EnvironmentFailed(message, field=f"{FIELD}.arguments")
    yield from _wrong_tools(environment, base_dir)
    if environment.path is None and environment.source is None:
        return
    part = "source" if environment.path is None else "path"
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about the user's code
            code = find_code(environment.path, environment.source, base_dir, FIELD)
            code.compile()
    except CodeError as error:
        yield EnvironmentFailed(str(error), field=f"{FIELD}.{part}")
        return
    for index, tool in enumerate(environment.tools):
        if not _defines(code, tool):
            yield EnvironmentFailed(f"the code has no function {tool!r}: define it", field=f"{FIELD}.tools[{index}]")
    entries = [environment.entry] if environment.entry else DEFAULTS
    if not environment.tools and not any(_defines(code, entry) for entry in entries):
        message = f"the code has no {' and no '.join(map(repr, entries))}: define one, or set entry or tools"
        yield EnvironmentFailed(message, field=f"{FIELD}.entry")


def _wrong_tools(environment: Environment, base_dir: Path) -> Iterator[EnvironmentFailed]:
    for index, tool in enumerate(environment.builtin_tools):
        field = f"{FIELD}.builtinTools[{index}]"
        if tool.name in environment.tools:
            message = f"tools and builtinTools both have {tool.name}, and the policy calls tools by name: rename one"
            yield EnvironmentFailed(message, field=f"{field}.name")
        if tool.corpus is not None:
            try:
                deque(read_corpus(locate(tool.corpus, base_dir)), maxlen=0)
            except ToolUnusable as error:
                yield EnvironmentFailed(str(error), field=f"{field}{error.below}")


def _defines(code: RewardCode, name: str) -> bool:
    try:
        code.check_defines(name)
    except CodeError:
        return False
    return True
