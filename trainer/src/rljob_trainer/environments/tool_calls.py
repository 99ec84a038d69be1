"""Calls of tools in an answer's text, as Hermes, Qwen and many others write them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


class ToolCall(NamedTuple):
    """arguments: an object, or what else the policy wrote in its place."""

    name: str
    arguments: Any

    def message(self, number: int) -> dict[str, Any]:
        """As a message's tool_calls have it. number: among the calls of the episode.

        Templates of Mistral take no id but of nine letters and digits.
        """
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": f"call{number:05}", "type": "function", "function": function}


ParseCalls = Callable[[str, Sequence[Mapping[str, Any]] | None], tuple[str, list[ToolCall]]]
"""Takes an answer and the schemas of the tools; returns the text without its calls, and the calls."""


def parse_tool_calls(text: str, _tools: Sequence[Mapping[str, Any]] | None = None) -> tuple[str, list[ToolCall]]:
    """A ParseCalls that needs no schemas.

    What stands between the tags and is no call becomes one whose name is "": its error is what the policy reads.
    """
    calls = [_call(found) for found in _CALL.findall(text)]
    return _CALL.sub("", text).strip() if calls else text, calls


def _call(text: str) -> ToolCall:
    try:
        written = json.loads(text)
    except (ValueError, RecursionError):
        return ToolCall("", text)
    if not (isinstance(written, dict) and isinstance(written.get("name"), str)):
        return ToolCall("", text)
    return ToolCall(written["name"], written.get("arguments") or {})
