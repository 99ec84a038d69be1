"""Loads the user's code and makes a rollout of it. Runs in environment processes: needs only Python 3.11."""

import inspect
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from rljob_trainer.environments.agents import PARAMETERS, is_agent, play_agent, play_command
from rljob_trainer.environments.api import Policy, Task
from rljob_trainer.environments.builtin import ToolUnusable, make_builtin
from rljob_trainer.environments.loops import play_steps, play_tools
from rljob_trainer.environments.mcp import McpUnusable, connect
from rljob_trainer.environments.tools import Tool, ToolError, make_tools
from rljob_trainer.rewards.load import LoadError, load_module, register_files
from rljob_trainer.rewards.protocol import FunctionSetup

FIELD = "spec.environment"
DEFAULTS = ("rollout", "Environment", "run")
"""Names that are looked for, in this order, without `entry` and `tools`."""

_TOOL_LISTS = ("tools", "builtin_tools", "mcp_servers")

Rollout = Callable[[Task, Policy], Awaitable[Any]]


async def load_rollout(setup: Mapping[str, Any]) -> Rollout:
    """setup: as EnvironmentPool makes it of spec.environment. Connects to its MCP servers.

    Raises LoadError, naming the field, for code that cannot be loaded or that lacks what is named.
    """
    if setup["code"]["command"]:
        return _command(setup["code"]["command"], Path(setup["base_dir"]))
    base_dir, tools, builtin, servers = (Path(setup["base_dir"]), *(setup[name] for name in _TOOL_LISTS))
    if not tools and not builtin and not servers:
        return _of_code(_function_setup(setup["code"]), base_dir)
    made = _tools(_loaded(_function_setup(setup["code"]), base_dir), tools) if tools else []
    made += _builtin_tools(builtin, base_dir)
    made += await _server_tools(servers, {tool.name for tool in made})
    return partial(play_tools, made)


def _function_setup(code: Mapping[str, Any]) -> FunctionSetup:
    """code: path, module, source, entry and arguments of spec.environment."""
    return FunctionSetup(
        "environment", None, code["path"], code["module"], code["source"], code["entry"] or "", code["arguments"]
    )


def _loaded(setup: FunctionSetup, base_dir: Path) -> ModuleType:
    register_files([setup], base_dir)
    return load_module(setup, base_dir, FIELD)


def _of_code(setup: FunctionSetup, base_dir: Path) -> Rollout:
    module = _loaded(setup, base_dir)
    name = setup.function or next((each for each in DEFAULTS if hasattr(module, each)), DEFAULTS[0])
    entry = getattr(module, name, None)
    if not callable(entry):
        defined = ", ".join(name for name, value in vars(module).items() if _is_own(value, module)) or "none"
        message = f"the code has no function or class {name!r}; it defines {defined}: define it, or correct entry"
        raise LoadError(message, f"{FIELD}.entry")
    return _of_class(entry, setup.arguments) if inspect.isclass(entry) else _function(entry, setup.arguments)


def _of_class(entry: type, arguments: Mapping[str, Any]) -> Rollout:
    for method, argument in (("reset", "task"), ("step", "answer")):
        if not callable(getattr(entry, method, None)):
            raise LoadError(f"class {entry.__name__} has no method {method}: add it", f"{FIELD}.entry")
        if inspect.isfunction(inspect.getattr_static(entry, method)):
            _bind(getattr(entry, method), ("self", argument), {})
    _bind(entry, (), arguments)
    return partial(play_steps, partial(entry, **arguments))


def _command(command: Sequence[str], base_dir: Path) -> Rollout:
    if shutil.which(base_dir / command[0] if "/" in command[0] else command[0]) is None:
        raise LoadError(f"{command[0]} is no program here: install it, or correct the name", f"{FIELD}.command[0]")
    return partial(play_command, command, base_dir)


def _function(entry: Callable[..., Any], arguments: Mapping[str, Any]) -> Rollout:
    if is_agent(entry):
        for name in sorted(set(PARAMETERS) & set(arguments)):
            message = f"an agent's {name} is that of its episode: remove this argument"
            raise LoadError(message, f"{FIELD}.arguments.{name}")
        given = partial(entry, **arguments)
        _bind(entry, ("task",), {**arguments, **dict.fromkeys(PARAMETERS)})
        return partial(play_agent, given)
    if not inspect.iscoroutinefunction(entry):
        raise LoadError(f"{entry.__name__} is not async: write `async def {entry.__name__}`", f"{FIELD}.entry")
    _bind(entry, ("task", "policy"), arguments)
    return partial(entry, **arguments)


def _bind(entry: Callable[..., Any], given: Sequence[str], arguments: Mapping[str, Any]) -> None:
    """given: names of what it is called with."""
    try:
        inspect.signature(entry).bind(*given, **arguments)
    except TypeError as error:
        at_fault = "arguments" if any(repr(name) in str(error) for name in arguments) else "entry"
        call = f"{entry.__qualname__}({', '.join([*given, *(f'{name}=' for name in arguments)])})"
        message = f"{entry.__name__} cannot be called: {error}; it is called as {call}"
        raise LoadError(message, f"{FIELD}.{at_fault}") from error


def _tools(module: ModuleType, names: Sequence[str]) -> list[Tool]:
    for index, name in enumerate(names):
        if not callable(getattr(module, name, None)):
            raise LoadError(f"the code has no function {name!r}: define it", f"{FIELD}.tools[{index}]")
    try:
        return make_tools([getattr(module, name) for name in names])
    except ToolError as error:
        raise LoadError(str(error), f"{FIELD}.tools[{error.index}]") from error


def _builtin_tools(settings: Sequence[Mapping[str, Any]], base_dir: Path) -> list[Tool]:
    made = []
    for index, each in enumerate(settings):
        try:
            made += make_tools([make_builtin(each, base_dir)])
        except ToolUnusable as error:
            raise LoadError(str(error), f"{FIELD}.builtinTools[{index}]{error.below}") from error
    return made


async def _server_tools(servers: Sequence[Mapping[str, Any]], names: set[str]) -> list[Tool]:
    """names: of other tools."""
    made: list[Tool] = []
    for index, server in enumerate(servers):
        try:
            found = await connect(server)
        except McpUnusable as error:
            raise LoadError(str(error), f"{FIELD}.mcpServers[{index}].{error.field}") from error
        for tool in found:
            if tool.name in names:
                message = f"two tools have the name {tool.name}, by which the policy calls them: choose other tools"
                raise LoadError(message, f"{FIELD}.mcpServers[{index}].tools")
        names = names | {tool.name for tool in found}
        made += found
    return made


def _is_own(value: Any, module: ModuleType) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__ == module.__name__
