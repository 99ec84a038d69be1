"""Tools: Python functions with type hints and docstrings, and their JSON schemas. Needs only Python 3.11.

Docstrings are in Google's style: what the tool does, and under "Args:" what each parameter is.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}


class ToolError(Exception):
    """A function cannot be a tool. index: which one."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class ToolBroken(Exception):
    """A tool failed for reasons that say nothing of the policy's call: the episode is played again."""


class ConnectionLost(ToolBroken):
    """What the process needs for its tools is gone: it cannot play any further episode."""


class ToolRefused(Exception):
    """A tool's own error. Its message is what the policy reads."""


@dataclass(frozen=True, slots=True)
class Tool:
    """schema: in the form that chat templates read, {type: function, function: {name, description, parameters}}."""

    name: str
    function: Callable[..., Any]
    schema: Mapping[str, Any]

    def checked(self, arguments: Any) -> dict[str, Any]:
        """Raises TypeError for arguments that the function does not take."""
        if not isinstance(arguments, dict):
            raise TypeError(f"the arguments are {arguments!r:.80}, not an object")
        inspect.signature(self.function).bind(**arguments)
        return arguments


def make_tools(functions: Sequence[Callable[..., Any]]) -> list[Tool]:
    """Raises ToolError for a function without a docstring, or with a parameter without a type that JSON has."""
    return [_tool(function, index) for index, function in enumerate(functions)]


def _tool(function: Callable[..., Any], index: int) -> Tool:
    name = function.__name__
    about, signature = inspect.getdoc(function) or "", inspect.signature(function)
    check_tool(name, about, signature, index)
    description, explained = _parsed(about)
    try:
        hints = typing.get_type_hints(function)
    except Exception as error:
        raise ToolError(f"the type hints of tool {name} cannot be read: {error}", index) from error
    properties, required = {}, []
    for parameter in signature.parameters.values():
        schema = _schema(hints.get(parameter.name))
        if schema is None:
            raise ToolError(
                f"parameter {parameter.name} of tool {name} has a type that JSON lacks: use str, int, float, bool,"
                " list, dict, Literal or a union of them",
                index,
            )
        note = explained.get(parameter.name)
        properties[parameter.name] = {**schema, "description": note} if note else schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    described = {"name": name, "description": description, "parameters": parameters}
    return Tool(name, function, {"type": "function", "function": described})


def check_tool(name: str, about: str, signature: inspect.Signature, index: int) -> None:
    """Raise ToolError for what a function lacks to be a tool. about: its docstring."""
    if not about:
        raise ToolError(f"tool {name} has no docstring, which tells the policy what it does: write one", index)
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(f"parameter {parameter.name} of tool {name} has no name in a call: name each", index)
        if parameter.annotation is parameter.empty:
            raise ToolError(f"parameter {parameter.name} of tool {name} has no type hint: write one", index)


def _schema(hint: Any) -> dict[str, Any] | None:
    """The JSON schema of a type hint; None if there is none."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint in _TYPES or origin is dict:
        return {"type": _TYPES[origin or hint]}
    if hint is Any:
        return {}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    schemas = [_schema(each) for each in inner if each is not type(None)]
    if not schemas or None in schemas:
        return None
    if origin in (typing.Union, types.UnionType):
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"type": "array", "items": schemas[0]} if origin is list else None


def _parsed(about: str) -> tuple[str, dict[str, str]]:
    """What it does, and what each parameter is, of a docstring in Google's style."""
    description, _, rest = about.partition("\nArgs:\n")
    notes = re.findall(r"^ +(\w+)(?: *\([^)]*\))?: *(.+(?:\n {8,}.+)*)", re.split(r"\n\w+:\n", rest)[0], re.MULTILINE)
    return description.strip(), {name: " ".join(note.split()) for name, note in notes}
