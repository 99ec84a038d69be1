"""Loads the user's code and makes a rollout of it. Runs in environment processes: needs only Python 3.11."""

import inspect
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
from rljob_trainer.paths import no_program
from rljob_trainer.rewards.load import LoadError, load_module, register_files
from rljob_trainer.rewards.protocol import FunctionSetup

FIELD = "spec.environment"
DEFAULTS = ("rollout", "Environment", "run")
"""Names that are looked for, in this order, without `entry` and `tools`."""

METHODS = {"reset": "task", "step": "answer"}
"""Of a class, and what each is called with."""

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
    made += await _server_tools(servers, {tool.name for tool in made}, base_dir)
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
    for method, argument in METHODS.items():
        if not callable(getattr(entry, method, None)):
            raise no_method(entry.__name__, method)
        if inspect.isfunction(inspect.getattr_static(entry, method)):
            function = getattr(entry, method)
            check_call(function.__qualname__, inspect.signature(function), ("self", argument), {})
    check_call(entry.__name__, inspect.signature(entry), (), arguments)
    return partial(play_steps, partial(entry, **arguments))


def _command(command: Sequence[str], base_dir: Path) -> Rollout:
    if (message := no_program(command, base_dir)) is not None:
        raise LoadError(message, f"{FIELD}.command[0]")
    return partial(play_command, command, base_dir)


def _function(entry: Callable[..., Any], arguments: Mapping[str, Any]) -> Rollout:
    try:
        signature = inspect.signature(entry)
    except (TypeError, ValueError):  # some functions written in C have none
        signature = inspect.Signature()
    given = partial(entry, **arguments)
    check_function(entry.__name__, signature, arguments, is_async=inspect.iscoroutinefunction(entry))
    return partial(play_agent, given) if is_agent(signature) else given


def check_function(
    name: str, signature: inspect.Signature, arguments: Mapping[str, Any], *, is_async: bool
) -> None:  # fmt: skip
    """Raise LoadError for a rollout or an agent that cannot be called."""
    if is_agent(signature):
        for each in sorted(set(PARAMETERS) & set(arguments)):
            message = f"an agent's {each} is that of its episode: remove this argument"
            raise LoadError(message, f"{FIELD}.arguments.{each}")
        check_call(name, signature, ("task",), {**arguments, **dict.fromkeys(PARAMETERS)})
        return
    if not is_async:
        raise LoadError(f"{name} is not async: write `async def {name}`", f"{FIELD}.entry")
    check_call(name, signature, ("task", "policy"), arguments)


def check_call(
    name: str, signature: inspect.Signature, given: Sequence[str], arguments: Mapping[str, Any]
) -> None:  # fmt: skip
    """Raise LoadError if it cannot be called. given: names of what it is called with."""
    try:
        signature.bind(*given, **arguments)
    except TypeError as error:
        at_fault = "arguments" if any(repr(each) in str(error) for each in arguments) else "entry"
        call = f"{name}({', '.join([*given, *(f'{each}=' for each in arguments)])})"
        message = f"{name.rpartition('.')[2]} cannot be called: {error}; it is called as {call}"
        raise LoadError(message, f"{FIELD}.{at_fault}") from error


def no_method(owner: str, method: str) -> LoadError:
    return LoadError(f"class {owner} has no method {method}: add it", f"{FIELD}.entry")


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


async def _server_tools(
    servers: Sequence[Mapping[str, Any]], names: set[str], base_dir: Path
) -> list[Tool]:  # fmt: skip
    """names: of other tools."""
    made: list[Tool] = []
    for index, server in enumerate(servers):
        try:
            found = await connect(server, base_dir)
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
