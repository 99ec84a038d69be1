"""Checks that the chat template shows the policy its tools and their results, before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_api import ResolvedSpec
from rljob_api.v1alpha1.model import Tokenizer
from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.rows import BadRow
from rljob_trainer.data.tokenizer import CHAT_TEMPLATE, build_tokenizer, make_tokenizer
from rljob_trainer.data.torchless import import_transformers
from rljob_trainer.environments.tool_calls import ToolCall
from rljob_trainer.errors import DataError
from rljob_trainer.paths import locate
from rljob_trainer.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_REMEDY = "set a template that shows `tools` and messages with the role tool, or remove the environment's tools"

_NAMED, _RETURNED = "73191", "48264"
"""In the name of the tool and in its result: digits, because a template may change the case of letters."""

_CALL = ToolCall("add", {"a": 1}).message(0)
_ASKED: Message = {"role": "user", "content": "Add"}
_RESULT: Message = {"role": "tool", "tool_call_id": _CALL["id"], "name": "add", "content": _RETURNED}
_TOOL = {
    "type": "function",
    "function": {
        "name": f"add_{_NAMED}",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "A number."}}},
    },
}


def check_tool_template(spec: ResolvedSpec, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raise DataError if the job has tools and its chat template rejects them or their results, or leaves them out."""
    if not _has_tools(spec):
        return
    chat = ChatFormat(tokenizer, spec.data.template_arguments)
    begin = _begin(chat)
    try:
        _check_shown(_NAMED, chat.render(begin, [_TOOL]), "the tools")
        _check_shown(_RETURNED, chat.render([*begin, _call(chat, begin), _RESULT], [_TOOL]), "the results of tools")
    except BadRow as error:
        raise DataError(
            f"tools need another chat template: {error}; {_REMEDY}", field="spec.model.chatTemplate"
        ) from error


def check_tool_template_here(spec: ResolvedSpec, base_dir: Path) -> None:
    """As check_tool_template, if the template is in the job, or with the model on this machine."""
    if _has_tools(spec) and (tokenizer := _tokenizer_here(spec, base_dir)) is not None:
        check_tool_template(spec, tokenizer)


def _has_tools(spec: ResolvedSpec) -> bool:
    """An environment's own code may use none, so the template is not known to need them."""
    environment = spec.environment
    return environment is not None and bool(environment.tools or environment.builtin_tools or environment.mcp_servers)


def _tokenizer_here(spec: ResolvedSpec, base_dir: Path) -> "PreTrainedTokenizerBase | None":
    """One with the job's template, which may have other tokens than the model's."""
    model = spec.model
    import_transformers()
    if model.path is not None and not model.trust_remote_code and locate(model.path, base_dir).is_dir():
        return make_tokenizer(spec, base_dir)
    template = model.chat_template or (CHAT_TEMPLATE if model.from_scratch is not None else None)
    if template is None:
        return None
    tokenizer = build_tokenizer(Tokenizer(kind="byte"), ())
    tokenizer.chat_template = template
    return tokenizer


def _begin(chat: ChatFormat) -> list[Message]:
    """A prompt that the template takes: some want a system message, and others refuse one."""
    system: Message = {"role": "system", "content": "You help"}
    return [_ASKED] if _renders(chat, [_ASKED]) else [system, _ASKED]


def _call(chat: ChatFormat, begin: Sequence[Message]) -> Message:
    """The policy's answer, as an episode has it: in its own words if the template rejects calls."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    return message if _renders(chat, [*begin, message]) else {"role": "assistant", "content": "add"}


def _renders(chat: ChatFormat, messages: Sequence[Message]) -> bool:
    try:
        chat.render_whole(messages, [_TOOL])
    except BadRow:
        return False
    return True


def _check_shown(marker: str, text: str, what: str) -> None:
    if marker not in text:
        raise BadRow(f"it leaves out {what}")
