"""Finds and calls the user's functions. Light: the driver imports it, which loads no torch."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rljob_api import ResolvedSpec
from rljob_api.resolve import ResolvedAlgorithm
from rljob_api.v1alpha1.own_functions import OwnFunction
from rljob_trainer.errors import JobError
from rljob_trainer.paths import locate
from rljob_trainer.rewards.code import describe, no_function
from rljob_trainer.rewards.load import LoadError, load_module, register_files
from rljob_trainer.rewards.private_imports import public
from rljob_trainer.rewards.protocol import FunctionSetup

FIELDS = {"advantage_from": "spec.algorithm.advantageFrom", "loss_from": "spec.algorithm.lossFrom"}


@dataclass(frozen=True, slots=True)
class Own:
    """A loaded function. field: of the spec."""

    function: Callable[..., Any]
    entry: str
    field: str

    def __call__(self, batch: object) -> Any:
        """What it returns, not checked yet. Raises JobError for whatever it raises."""
        try:
            return self.function(batch)
        except Exception as error:  # every error of the user's code
            raise self.wrong(f"raised {public(describe(error))}; correct the code") from error

    def wrong(self, what: str) -> JobError:
        return JobError(f"{self.entry} {what}", field=self.field)


def with_own_functions(spec: ResolvedSpec, base_dir: Path) -> ResolvedSpec:
    """The spec with absolute paths of the user's functions, also of modules that lie beside the job's file."""
    found = {name: _placed(own, base_dir) for name, own in _given(spec.algorithm).items()}
    return spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update=found)}) if found else spec


def _placed(own: OwnFunction, base_dir: Path) -> OwnFunction:
    beside = own.path or f"{str(own.module).replace('.', '/')}.py"
    file = locate(beside, base_dir).resolve()
    return own.model_copy(update={"path": str(file)}) if own.path or file.is_file() else own


def _given(algorithm: ResolvedAlgorithm) -> dict[str, OwnFunction]:
    return {name: own for name in FIELDS if (own := getattr(algorithm, name)) is not None}


def own_function(own: OwnFunction, name: str) -> Own:
    """The function of `own`, which with_own_functions placed; loaded once a process. name: advantage_from, loss_from.

    Raises JobError for code that cannot be loaded, lacks the function, or whose function takes other arguments.
    """
    return _loaded(own.path, own.module, str(getattr(own, "entry")), json.dumps(own.arguments), FIELDS[name])  # noqa: B009


@cache
def _loaded(path: str | None, module: str | None, entry: str, arguments: str, field: str) -> Own:
    given = json.loads(arguments)
    setup = FunctionSetup(field.rpartition(".")[2], None, path, None if path else module, None, entry, given)
    folder = Path(path).parent if path else Path()
    try:
        register_files([setup], folder)
        loaded = load_module(setup, folder, field)
    except LoadError as error:
        raise JobError(error.failure.message, field=error.failure.field) from error
    function = getattr(loaded, entry, None)
    if not callable(function):
        defined = [name for name, value in vars(loaded).items() if inspect.isfunction(value)]
        raise JobError(no_function(entry, defined).replace("set function to", "set entry to"), field=f"{field}.entry")
    try:
        inspect.signature(function).bind(None, **given)
    except TypeError as error:
        at_fault = "arguments" if any(repr(name) in str(error) for name in given) else "entry"
        message = f"{entry}{inspect.signature(function)} cannot be called as {entry}(batch, **arguments): {error}"
        raise JobError(message, field=f"{field}.{at_fault}") from error
    return Own(lambda batch: function(batch, **json.loads(arguments)), entry, field)
