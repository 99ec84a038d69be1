"""Loads spec.rewards.functions as callables, in a reward process that contains failures of user code."""

import dataclasses
import difflib
import importlib
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rljob_trainer.rewards.code import CodeError, RewardCode, describe, find_code, no_function
from rljob_trainer.rewards.protocol import Call, FunctionSetup, LoadFailure

if TYPE_CHECKING:
    from pydantic import ValidationError

ComputeScore = Callable[[Call], Any]
"""Should return a number or a mapping; the result is not checked yet."""


class LoadError(Exception):
    """A function cannot be loaded."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, field)
        self.failure = LoadFailure(message, field)


def load(setup: FunctionSetup, base_dir: Path, field: str) -> ComputeScore:
    """The reward function of `setup`. field: its field in the spec ("spec.rewards.functions[0]").

    Raises:
        LoadError: syntax error, failed import, missing function, wrong signature or argument.
    """
    if setup.builtin is not None:
        return load_builtin(setup.builtin, setup.arguments, field)
    origin = "path" if setup.path else "module" if setup.module else "source"
    module = _module(setup, base_dir, field, origin)
    function = getattr(module, setup.function, None)
    if not callable(function):
        defined = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise LoadError(no_function(setup.function, defined), f"{field}.function")
    if inspect.iscoroutinefunction(function):
        raise LoadError(f"{setup.function} is async; make it an ordinary function", f"{field}.function")
    arguments = dict(setup.arguments)
    _check_signature(function, arguments, field)

    def compute_score(call: Call) -> Any:
        return function(
            data_source=call.data_source,
            solution_str=call.solution_str,
            ground_truth=call.ground_truth,
            extra_info=dict(call.extra_info),  # a change must not reach the next function
            **arguments,
        )

    return compute_score


def load_builtin(name: str, arguments: Mapping[str, Any], field: str) -> ComputeScore:
    """A builtin reward. Raises LoadError for an unknown or invalid argument."""
    from pydantic import ValidationError

    kind = _builtin(name)
    try:
        reward: ComputeScore = kind(**arguments)
    except ValidationError as error:
        raise LoadError(next(_wrong_arguments(name, kind, error)), f"{field}.arguments") from error
    return reward


def builtin_errors(name: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """All errors of a builtin's arguments."""
    from pydantic import ValidationError

    kind = _builtin(name)
    try:
        kind(**arguments)
    except ValidationError as error:
        yield from _wrong_arguments(name, kind, error)


def _builtin(name: str) -> Any:
    return importlib.import_module(f"rljob_trainer.rewards.builtin.{name}").Reward


def _wrong_arguments(name: str, kind: Any, error: "ValidationError") -> Iterator[str]:
    for each in error.errors():
        place = ".".join(str(part) for part in each["loc"])
        message = each["msg"].removeprefix("Value error, ")
        if each["type"] == "unexpected_keyword_argument":
            known = [field.name for field in dataclasses.fields(kind)]
            close = difflib.get_close_matches(place, known, n=1)
            meant = f", did you mean {close[0]!r}?" if close else ""
            yield f"unknown argument {place!r}{meant}; {name} has {', '.join(known) or 'none'}"
        else:
            yield f"{place}: {message}" if place else message


def _module(setup: FunctionSetup, base_dir: Path, field: str, origin: str) -> ModuleType:
    try:
        if setup.module:
            sys.path.append(str(base_dir))
            return importlib.import_module(setup.module)
        code = find_code(setup.path, setup.source, base_dir, field)
        if setup.path:
            sys.path.append(str(Path(code.filename).parent))  # a reward file may import files beside it
            return _execute(code, Path(code.filename).stem)
        return _execute(code, f"reward_{setup.name.replace('-', '_')}")
    except CodeError as error:
        raise LoadError(str(error), f"{field}.{origin}") from error
    except (Exception, SystemExit) as error:
        remedy = "install it, or correct the name" if isinstance(error, ImportError) else "correct the code"
        message = f"{setup.path or setup.module or 'the code'}: {describe(error)}; {remedy}"
        raise LoadError(message, f"{field}.{origin}") from error


def _execute(code: RewardCode, name: str) -> ModuleType:
    compiled = code.compile()
    module = ModuleType(name)
    module.__file__ = code.filename
    sys.modules[name] = module  # dataclasses and pickle look up the module
    if isinstance(code.text, str):  # no file for traceback lines
        lines = code.text.splitlines(keepends=True)
        linecache.cache[code.filename] = (len(code.text), None, lines, code.filename)
    exec(compiled, vars(module))
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
