"""From spec.rewards.functions to something callable; runs in a reward process, where user code may do its worst."""

import importlib
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from rljob_trainer.rewards.protocol import Call, FunctionSetup, LoadFailure

ComputeScore = Callable[[Call], Any]
"""Returns a number or a mapping, if the user's code is right."""


class LoadError(Exception):
    """A function cannot be loaded."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, field)
        self.failure = LoadFailure(message, field)


def load(setup: FunctionSetup, base_dir: Path, field: str) -> ComputeScore:
    """The reward function of `setup`, whose place in the spec is `field` ("spec.rewards.functions[0]").

    Raises:
        LoadError: syntax error, failed import, missing function, wrong signature or argument.
    """
    if setup.builtin is not None:
        return _builtin(setup, field)
    origin = "path" if setup.path else "module" if setup.module else "source"
    module = _module(setup, base_dir, f"{field}.{origin}")
    function = getattr(module, setup.function, None)
    if not callable(function):
        defined = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        message = f"no function {setup.function!r}; it defines {', '.join(defined) or 'none'}"
        raise LoadError(message, f"{field}.function")
    if inspect.iscoroutinefunction(function):
        raise LoadError(f"{setup.function} is async; make it an ordinary function", f"{field}.function")
    arguments = dict(setup.arguments)
    _check_signature(function, arguments, field)

    def compute_score(call: Call) -> Any:
        return function(
            data_source=call.data_source,
            solution_str=call.solution_str,
            ground_truth=call.ground_truth,
            extra_info=dict(call.extra_info),  # what one function changes, the next must not see
            **arguments,
        )

    return compute_score


def describe(error: BaseException) -> str:
    """The error in one line, with the innermost line of code that is not in an installed package."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}: {(error.text or '').strip()}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{reason} (line {frames[-1].lineno} of {frames[-1].filename})" if frames else reason


def _builtin(setup: FunctionSetup, field: str) -> ComputeScore:
    from pydantic import ValidationError

    kind = importlib.import_module(f"rljob_trainer.rewards.builtin.{setup.builtin}").Reward
    try:
        reward: ComputeScore = kind(**setup.arguments)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise LoadError(f"{place}: {message}" if place else message, f"{field}.arguments") from error
    return reward


def _module(setup: FunctionSetup, base_dir: Path, field: str) -> ModuleType:
    try:
        if setup.module:
            sys.path.append(str(base_dir))
            return importlib.import_module(setup.module)
        if setup.path:
            path = base_dir / setup.path
            sys.path.append(str(path.parent))  # a reward file may import its neighbours
            return _execute(path.read_text(), str(path), path.stem)
        return _execute(str(setup.source), f"<{field}>", f"reward_{setup.name.replace('-', '_')}")
    except FileNotFoundError as error:
        if setup.path and error.filename == str(base_dir / setup.path):
            raise LoadError(f"no file {error.filename}; a relative path starts at the RLJob's file", field) from error
        raise LoadError(describe(error), field) from error
    except (Exception, SystemExit) as error:
        raise LoadError(f"{setup.path or setup.module or 'the code'}: {describe(error)}", field) from error


def _execute(source: str, filename: str, name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = filename
    sys.modules[name] = module  # dataclasses and pickle look their module up
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    code: CodeType = compile(source, filename, "exec")
    exec(code, vars(module))
    return module


def _check_signature(function: Callable[..., Any], arguments: Mapping[str, Any], field: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return
    call = {"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}, **arguments}
    try:
        signature.bind(**call)
    except TypeError as error:
        blamed = "arguments" if any(repr(name) in str(error) for name in arguments) else "function"
        raise LoadError(
            f"{getattr(function, '__name__', 'the function')}{signature} cannot be called as"
            f" f({', '.join(f'{name}=...' for name in call)}): {error}",
            f"{field}.{blamed}",
        ) from error


def _is_users(filename: str) -> bool:
    ours = (str(Path(__file__).parent), sys.base_prefix, "<frozen")
    return "site-packages" not in filename and not filename.startswith(ours)
