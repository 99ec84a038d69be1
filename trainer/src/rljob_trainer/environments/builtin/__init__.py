"""Tools of the trainer, which environment.builtinTools names: one file each.

A tool's file is loaded only if a job names it: what it needs of other packages is needed then alone.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class ToolUnusable(Exception):
    """A tool cannot be used here. field: of environment.builtinTools' entry; "" is the entry."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field

    @property
    def below(self) -> str:
        """What follows the entry's name in a field."""
        return f".{self.field}" if self.field else ""


def make_builtin(settings: Mapping[str, Any], base_dir: Path) -> Callable[..., Any]:
    """The function of a tool. settings: name, corpus, results and seconds; base_dir: base of relative paths.

    Raises ToolUnusable.
    """
    module = importlib.import_module(f"{__name__}.{settings['name']}")
    function: Callable[..., Any] = module.make(settings, base_dir)
    return function
