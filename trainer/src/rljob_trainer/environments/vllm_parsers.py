"""Calls of tools as vLLM's parsers read them, without an engine. Importing vLLM takes seconds and loads torch."""

import difflib
import json
import logging
from typing import TYPE_CHECKING, Any

from rljob_trainer.data.chat import Tools
from rljob_trainer.data.rows import BadRow
from rljob_trainer.environments.tool_calls import ParseCalls, ToolCall
from rljob_trainer.errors import EnvironmentFailed, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIELD = "spec.environment.toolParser"
_ANY = {"type": "function", "function": {"name": "any", "parameters": {"type": "object", "properties": {}}}}


def vllm_parser(name: str, tokenizer: "PreTrainedTokenizerBase") -> ParseCalls:
    """The parser that vLLM's option --tool-call-parser names.

    What it does not read as a call is text, so the episode ends with it.

    Raises EnvironmentFailed if vLLM has no such parser, or if the parser lacks a token in the tokenizer.
    """
    try:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager
    except ImportError as error:
        raise EnvironmentFailed(
            f"toolParser needs vLLM ({error}): install the extra vllm, or remove toolParser", field=FIELD
        ) from error
    for part in ("vllm.tool_parsers", "vllm.parser"):  # they log a traceback for each call that is malformed
        logging.getLogger(part).setLevel(logging.CRITICAL)
    known = sorted(ToolParserManager.list_registered())
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        suggestion = f", did you mean {close[0]!r}?" if close else ""
        raise EnvironmentFailed(f"vLLM has no parser {name!r}{suggestion} It has {', '.join(known)}", field=FIELD)
    parser = ToolParserManager.get_tool_parser(name)

    def parse(text: str, tools: Tools) -> tuple[str, list[ToolCall]]:
        try:
            request = ChatCompletionRequest(model="policy", messages=[], tools=list(tools) if tools else None)
        except ValueError as error:
            raise BadRow(f"the tools are not as vLLM takes them: {first_line(error)}") from error
        found = parser(tokenizer, request.tools).extract_tool_calls(text, request)  # a new one: it keeps state
        calls = [ToolCall(call.function.name, _arguments(call.function.arguments)) for call in found.tool_calls]
        return (found.content or "") if calls else text, calls

    try:
        parse("", [_ANY])
    except Exception as error:
        message = f"parser {name} cannot read this model's answers: {first_line(error)}; choose another"
        raise EnvironmentFailed(message, field=FIELD) from error
    return parse


def _arguments(written: str) -> Any:
    """An object, or what else the policy wrote: the tool's error is what the policy then reads."""
    try:
        return json.loads(written)
    except ValueError:
        return written
