"""CEL programs, by the extension module of common-expression-language.

Its package imports a command line and a REPL with it, which takes 0.8 s; every `rljob validate` would pay that.
"""

import re
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from threading import Lock
from types import ModuleType
from typing import Any, Protocol, cast

_NAME = "cel.cel"
_IMPORT = Lock()


class Program(Protocol):
    """A compiled expression."""

    def execute(self, context: dict[str, Any]) -> Any:
        """Its value, with the variables of `context`."""


@cache
def compiled(expression: str) -> Program:
    """expression: as in Kubernetes: a field that is named like a word of CEL is `__word__`."""
    return cast("Program", _engine().compile(re.sub(r"\b__([a-z]+)__\b", r"\1", expression)))


def _engine() -> ModuleType:
    with _IMPORT:  # the module cannot be made twice in one process
        return sys.modules.get(_NAME) or _import_engine()


def _import_engine() -> ModuleType:
    package = find_spec("cel")
    spec = PathFinder.find_spec(_NAME, package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("common-expression-language is not installed")
    engine = module_from_spec(spec)
    spec.loader.exec_module(engine)
    sys.modules[_NAME] = engine
    return engine
