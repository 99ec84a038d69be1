"""Loads spec.rewards.functions as callables, in a reward process that contains failures of user code."""

import dataclasses
import difflib
import importlib
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rljob_trainer.paths import locate
from rljob_trainer.rewards.code import CodeError, RewardCode, describe, find_code, no_function
from rljob_trainer.rewards.private_imports import PREFIX, load_file, public, register
from rljob_trainer.rewards.protocol import Call, FunctionSetup, LoadFailure
from rljob_trainer.rewards.signature import ComputeScore, SignatureError

if TYPE_CHECKING:
    from pydantic import ValidationError


class LoadError(Exception):
    """A function cannot be loaded."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message, field)
        self.failure = LoadFailure(message, field)


def register_files(functions: Sequence[FunctionSetup], base_dir: Path) -> None:
    """Make all reward files known before the first is loaded: they are no neighbours of each other by accident."""
    sys.path.append(str(base_dir))  # for modules
    register(file for setup in functions if (file := _file(setup, base_dir)) is not None)


def load(setup: FunctionSetup, base_dir: Path, field: str) -> ComputeScore:
    """The reward function of `setup`, whose file is registered. field: its field ("spec.rewards.functions[0]").

    Raises:
        LoadError: syntax error, failed import, missing function, wrong signature or argument.
    """
    if setup.builtin is not None:
        return load_builtin(setup.builtin, setup.arguments, field)
    module = load_module(setup, base_dir, field)
    function = getattr(module, setup.function, None)
    if not callable(function):
        defined = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise LoadError(no_function(setup.function, defined), f"{field}.function")
    try:
        return ComputeScore(function, setup.arguments)
    except SignatureError as error:
        raise LoadError(str(error), f"{field}.{'arguments' if error.argument else 'function'}") from error


def load_builtin(name: str, arguments: Mapping[str, Any], field: str) -> ComputeScore:
    """A builtin reward. Raises LoadError for an unknown or invalid argument."""
    from pydantic import ValidationError

    kind = _builtin(name)
    try:
        reward = kind(**arguments)
    except ValidationError as error:
        raise LoadError(next(_wrong_arguments(name, kind, error)), f"{field}.arguments") from error
    return ComputeScore(lambda **call: reward(Call(**call)), {})


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


def load_module(setup: FunctionSetup, base_dir: Path, field: str) -> ModuleType:
    """The module of `setup`, whose file is registered. Raises LoadError for code that cannot be loaded."""
    origin = "path" if setup.path else "module" if setup.module else "source"
    try:
        file = _file(setup, base_dir)
        if setup.module and file is None:
            return importlib.import_module(setup.module)
        code = find_code(setup.path or (str(file) if file else None), setup.source, base_dir, field)
        code.compile()
        return load_file(file) if file else _execute(code, f"{PREFIX}{setup.name.replace('-', '_')}")
    except CodeError as error:
        raise LoadError(str(error), f"{field}.{origin}") from error
    except BaseException as error:
        remedy = "install it, or correct the name" if isinstance(error, ImportError) else "correct the code"
        message = f"{setup.path or setup.module or 'the code'}: {public(describe(error))}; {remedy}"
        raise LoadError(message, f"{field}.{origin}") from error


def _file(setup: FunctionSetup, base_dir: Path) -> Path | None:
    """The file of a function with a path, or of a module that lies beside the job's file, if it exists."""
    name = setup.path or (setup.module and f"{setup.module.replace('.', '/')}.py")
    if not name:
        return None
    file = locate(name, base_dir)
    with suppress(OSError):
        return file if file.is_file() else None
    return None


def _execute(code: RewardCode, name: str) -> ModuleType:
    compiled = code.compile()
    module = ModuleType(name)
    module.__file__ = code.filename
    sys.modules[name] = module  # dataclasses and pickle look up the module
    lines = str(code.text).splitlines(keepends=True)  # no file for traceback lines
    linecache.cache[code.filename] = (len(code.text), None, lines, code.filename)
    exec(compiled, vars(module))
    return module
