"""Imports of reward code. A reward file is a module of a private package, and so are its neighbours.

    rewards/math.py                         _rljob_reward_0.math
    import helper, from .helper import f    _rljob_reward_0.helper   in math.py, if rewards/helper.py exists
    import math                             the standard library's   in math.py and helper.py
    import random                           the standard library's   in numpy, even if rewards/random.py exists

So a file may have the name of any module, two folders may have a helper.py each, and only reward code sees its
neighbours before other modules. A reward file whose name is also that of another module is no neighbour.
"""

import builtins
import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "_rljob_reward_"
_VARIABLE = "RLJOB_REWARD_FILES"
"""Carries the files of register() to processes that multiprocessing spawns from a reward process."""


def register(files: Iterable[Path]) -> None:
    """Make the files known, all of them before the first is loaded."""
    paths = [file.resolve() for file in files]
    os.environ[_VARIABLE] = json.dumps([str(path) for path in paths])
    for path in paths:
        package = next((known for known in _PACKAGES.values() if known.folder == path.parent), None)
        if package is None:
            package = _Package(f"{PREFIX}{len(_PACKAGES)}", path)
            _PACKAGES[package.name] = package
        package.add(path)
        if str(path.parent) not in sys.path:  # last: for importlib.import_module and for processes that it starts
            sys.path.append(str(path.parent))
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        vars(builtins)["__import__"] = _import


def register_again() -> None:
    """The same in a spawned process."""
    register(map(Path, json.loads(os.environ.get(_VARIABLE, "[]"))))


def load_file(path: Path) -> ModuleType:
    """The module of a registered file; two functions of one file share it. Raises what its code raises."""
    path = path.resolve()
    return importlib.import_module(next(p.files[path] for p in _PACKAGES.values() if path in p.files))


def public(text: str) -> str:
    """A message as the user's own names have it."""
    return re.sub(rf"{PREFIX}\d+\.", "", text)


class _Package:
    """The private package of a folder with reward files, which may be a Python package itself.

    files: module of each reward file. searched: the folder, and the one above its packages, with their names here.
    """

    def __init__(self, name: str, file: Path) -> None:
        self.folder, self.root = file.parent, _root(file)
        self.name = name
        self.inside = ".".join((name, *file.parent.relative_to(self.root).parts))
        self.searched = {file.parent: self.inside, self.root: name}
        self.files: dict[Path, str] = {}

    def add(self, path: Path) -> None:
        self.files[path] = f"{self.inside}.{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"

    def path_of(self, module: str) -> Path | None:
        return next((path for path, name in self.files.items() if name == module), None)

    @cache  # noqa: B019  packages live as long as the process
    def neighbour(self, top: str) -> str | None:
        """The private package that has a module `top` for reward code."""
        for folder, inside in self.searched.items():
            found = PathFinder.find_spec(top, [str(folder)])
            own = found is not None and found.origin is not None and Path(found.origin) in self.files
            if found is not None and found.loader is not None and not (own and self._elsewhere(top)):
                return inside
        return None

    def _elsewhere(self, top: str) -> bool:
        others = [folder for folder in sys.path if Path(folder or ".").resolve() not in self.searched]
        return top in sys.builtin_module_names or PathFinder.find_spec(top, others) is not None


_PACKAGES: dict[str, _Package] = {}
_ordinary_import = builtins.__import__


def _import(
    name: str, globals: Mapping[str, Any] | None = None, locals: Mapping[str, Any] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (), level: int = 0,
) -> ModuleType:  # fmt: skip
    """Python's own, except that a module of a private package finds its neighbours first."""
    package = _PACKAGES.get(str((globals or {}).get("__name__")).partition(".")[0])
    top = name.partition(".")[0]
    inside = package.neighbour(top) if package is not None and level == 0 else None
    if inside is None:
        return _ordinary_import(name, globals, locals, fromlist or (), level)
    found = _ordinary_import(f"{inside}.{name}", globals, locals, fromlist or (), 0)
    return found if fromlist else sys.modules[f"{inside}.{top}"]


class _Finder(MetaPathFinder):
    """Finds the private packages and what is in them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        package = _PACKAGES.get(top)
        if package is None:
            return None
        if not rest:
            return _namespace(fullname, package.root)
        file = package.path_of(fullname)
        if file is not None:
            return spec_from_file_location(fullname, file, loader=_Loader(fullname, str(file)))
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(fullname, found.loader.path)
        return found


class _Loader(SourceFileLoader):
    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write no .pyc beside a user's file."""


def _namespace(name: str, folder: Path) -> ModuleSpec:
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


def _root(path: Path) -> Path:
    """The folder above the Python packages that hold the file: where its relative imports end."""
    folders: Iterator[Path] = iter(path.parents)
    return next(folder for folder in folders if not (folder / "__init__.py").exists() or "." in folder.name)
