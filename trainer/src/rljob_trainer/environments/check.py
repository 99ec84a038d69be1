"""Checks spec.environment before anything starts, without running code."""

import ast
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rljob_api.v1alpha1 import Environment
from rljob_trainer.environments import outline
from rljob_trainer.environments.builtin import ToolUnusable
from rljob_trainer.environments.builtin.search import read_corpus
from rljob_trainer.environments.entry import DEFAULTS, FIELD, METHODS, check_call, check_function, no_method
from rljob_trainer.environments.tools import ToolError, check_tool
from rljob_trainer.errors import EnvironmentFailed
from rljob_trainer.paths import is_here, locate, no_program
from rljob_trainer.rewards.code import CodeError, RewardCode, find_code
from rljob_trainer.rewards.load import LoadError


def check_environment(environment: Environment, base_dir: Path) -> None:
    """Raise EnvironmentFailed for the first error on this machine. Only an environment process can find a module."""
    for error in (*environment_errors(environment, base_dir), *program_errors(environment, base_dir)):
        raise error


def check_code(environment: Environment, base_dir: Path) -> None:
    """Raise EnvironmentFailed for the first error in the code, if it is here: another node may have it."""
    if environment.path is None or is_here(locate(environment.path, base_dir)):
        for error in _wrong_code(environment, base_dir):
            raise error


def environment_errors(environment: Environment, base_dir: Path) -> Iterator[EnvironmentFailed]:
    """All errors of the code that can be seen without running it, and of corpora."""
    if environment.arguments and (environment.tools or environment.builtin_tools or environment.mcp_servers):
        message = "the policy gives the arguments of tools: remove arguments, or set entry"
        yield EnvironmentFailed(message, field=f"{FIELD}.arguments")
    if environment.arguments and environment.command:  # no rule: CEL does not see a field of any content
        message = "a command has its own arguments: write them into command"
        yield EnvironmentFailed(message, field=f"{FIELD}.arguments")
    yield from _wrong_tools(environment, base_dir)
    yield from _wrong_code(environment, base_dir)


def program_errors(environment: Environment, base_dir: Path) -> Iterator[EnvironmentFailed]:
    """Programs that are not on this machine."""
    commands = {f"mcpServers[{index}].": server.command for index, server in enumerate(environment.mcp_servers)}
    for owner, command in {"": environment.command, **commands}.items():
        if command and (message := no_program(command, base_dir)) is not None:
            yield EnvironmentFailed(message, field=f"{FIELD}.{owner}command[0]")


def _wrong_code(environment: Environment, base_dir: Path) -> Iterator[EnvironmentFailed]:
    if environment.path is None and environment.source is None:
        return
    part = "source" if environment.path is None else "path"
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about the user's code
            code = find_code(environment.path, environment.source, base_dir, FIELD)
            code.compile()
            tree = ast.parse(code.text)
    except (CodeError, RecursionError) as error:  # the parser nests less deep than the compiler
        if isinstance(error, CodeError):
            yield EnvironmentFailed(str(error), field=f"{FIELD}.{part}")
        return
    for index, tool in enumerate(environment.tools):
        if not _defines(code, tool):
            yield EnvironmentFailed(f"the code has no function {tool!r}: define it", field=f"{FIELD}.tools[{index}]")
        yield from _found(partial(_check_tool, tree, tool, index))
    if environment.tools:
        return
    entries = [environment.entry] if environment.entry else DEFAULTS
    entry = next((entry for entry in entries if _defines(code, entry)), None)
    if entry is None:
        message = f"the code has no {' and no '.join(map(repr, entries))}: define one, or set entry or tools"
        yield EnvironmentFailed(message, field=f"{FIELD}.entry")
        return
    yield from _found(partial(_check_entry, tree, entry, environment))


def _found(check: Callable[[], None]) -> Iterator[EnvironmentFailed]:
    """What an environment process would say."""
    try:
        check()
    except LoadError as error:
        yield EnvironmentFailed(error.failure.message, field=error.failure.field)
    except ToolError as error:
        yield EnvironmentFailed(str(error), field=f"{FIELD}.tools[{error.index}]")


def _check_entry(tree: ast.Module, name: str, environment: Environment) -> None:
    match outline.definition(tree, name):
        case ast.ClassDef() as owner:
            _check_class(owner, environment)
        case ast.FunctionDef() | ast.AsyncFunctionDef() as function:
            is_async = isinstance(function, ast.AsyncFunctionDef)
            check_function(name, outline.signature(function), environment.arguments, is_async=is_async)


def _check_class(owner: ast.ClassDef, environment: Environment) -> None:
    for name, argument in METHODS.items():
        if outline.lacks(owner, name):
            raise no_method(owner.name, name)
        if (function := outline.method(owner, name)) is not None:
            check_call(f"{owner.name}.{name}", outline.signature(function), ("self", argument), {})
    if (begin := outline.signature_of_class(owner)) is not None:
        check_call(owner.name, begin, (), environment.arguments)


def _check_tool(tree: ast.Module, name: str, index: int) -> None:
    function = outline.definition(tree, name)
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        check_tool(name, ast.get_docstring(function) or "", outline.signature(function), index)


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
