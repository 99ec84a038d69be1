"""Reward code as text, and checks that do not run it.

`rljob run` makes them before anything starts, and a reward process before it runs the code.
"""

import ast
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from rljob_trainer.paths import locate, no_file

_PACKAGE = Path(__file__).parents[1]
_LONGEST_LINE = 80
_LONGEST_REASON = 300
_DYNAMIC = {
    "*", "__dict__", "__getattr__", "__import__", "__name__", "eval", "exec", "f_globals", "globals", "import_module",
    "locals", "modules", "setattr", "vars",
}  # fmt: skip
"""Names in code that may bind other names dynamically."""


class CodeError(Exception):
    """What is wrong with reward code, and the remedy."""


@dataclass(frozen=True, slots=True)
class RewardCode:
    """text: of `source`, or a file's bytes, with any encoding. filename: for tracebacks. called: for messages."""

    text: str | bytes
    filename: str
    called: str

    def compile(self) -> CodeType:
        """Raises CodeError if Python cannot compile it."""
        try:
            return compile(self.text, self.filename, "exec")
        except SyntaxError as error:
            raise CodeError(f"{self.called}: {_syntax(error)}; correct it") from error
        except (MemoryError, RecursionError) as error:
            raise CodeError(f"{self.called}: nested too deeply for Python; write it flatter") from error
        except ValueError as error:
            raise CodeError(f"{self.called}: {error}; correct it") from error

    def check_defines(self, function: str) -> None:
        """Raise CodeError if the text shows that running it cannot bind `function`."""
        try:
            tree = ast.parse(self.text)
        except RecursionError:  # the parser nests deeper than the compiler
            return
        nodes = list(ast.walk(tree))
        declared = (node for node in nodes if isinstance(node, ast.Global))
        if function in _names([*_top_level(tree), *declared]) or _DYNAMIC & _names(nodes):
            return
        raise CodeError(no_function(function, [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]))


def find_code(path: str | None, source: str | None, base_dir: Path, field: str) -> RewardCode:
    """The code of a function with a `path` or a `source`. field: the function's field ("spec.rewards.functions[0]").

    Raises:
        CodeError: the file cannot be read.
    """
    if path is None:
        return RewardCode(str(source), f"<{field}.source>", "the code")
    file = locate(path, base_dir)
    try:
        return RewardCode(file.read_bytes(), str(file), path)
    except FileNotFoundError as error:
        raise CodeError(no_file(file)) from error
    except IsADirectoryError as error:
        raise CodeError(f"{file} is a folder; name a Python file") from error
    except (OSError, ValueError) as error:
        raise CodeError(f"cannot read {path!r}: {describe(error)}; correct the path or its permissions") from error


def no_function(name: str, defined: Sequence[str]) -> str:
    """The message for code that lacks the function. defined: the functions that it has."""
    return f"no function {name!r}; it defines {', '.join(defined) or 'none'}: define it, or set function to another"


def describe(error: BaseException) -> str:
    """The error in one line, with the innermost line of the user's own code."""
    if isinstance(error, SyntaxError):
        return f"{_syntax(error)} (in {error.filename})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    text = _cut(" ".join(text_of(error).split()), _LONGEST_REASON)
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{reason} (line {frames[-1].lineno} of {frames[-1].filename})" if frames else reason


def text_of(value: object) -> str:
    """Its text, whatever reward code makes of it."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001  its __str__ is user code
        return f"<{type(value).__name__}>"


def _syntax(error: SyntaxError) -> str:
    line = f"line {error.lineno}: " if error.lineno else ""
    shown = _cut((error.text or "").strip(), _LONGEST_LINE)
    return f"{line}{error.msg}: {shown!r}" if shown else f"{line}{error.msg}"


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _is_users(filename: str) -> bool:
    ours = (f"{_PACKAGE}/", sys.base_prefix, "<frozen")
    return "site-packages" not in filename and not filename.startswith(ours)


def _top_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes outside functions and classes."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            left.extend(ast.iter_child_nodes(node))


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    """All names that the nodes bind or use."""
    names: set[str] = set()
    for node in nodes:
        names.update(str(getattr(node, field, "")) for field in ("id", "name", "asname", "attr", "rest"))
        if isinstance(node, ast.Global):
            names.update(node.names)
    return names
