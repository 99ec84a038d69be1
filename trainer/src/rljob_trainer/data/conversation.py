"""From a row to a conversation: checks messages and keeps all their fields, which the chat template may read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.rows import BadRow, is_text
from rljob_trainer.types import Message

__all__ = [
    "ChatFormat",
    "Conversation",
    "read_answer",
    "read_answered",
    "read_messages",
    "read_prompt",
    "read_supervised",
]

Messages = Sequence[Message]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the chat template gets from one row.

    answer: the assistant's message to imitate; None in a row of RL.
    tools: JSON schemas of the functions that the assistant may call; None without.
    key: other content that the fingerprint covers.
    """

    messages: Messages
    answer: Message | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    key: str = ""


def read_messages(row: Mapping[str, Any], column: str) -> Messages:
    """The conversation in `column`, without fields that are null: tables write null for a field that a message lacks.

    Raises:
        BadRow: it is not a non-empty list of messages with a role and with text.
    """
    messages = row.get(column)
    if not isinstance(messages, list) or not messages:
        raise BadRow(f"column {column!r} is {_short(messages)}; it must be a list of {{role, content}}")
    return [_message(message, column) for message in messages]


def _message(message: Any, column: str) -> Message:
    if not (isinstance(message, dict) and is_text(message.get("role"))):
        raise BadRow(
            f"column {column!r} holds {_short(message)}; each message is {{role, content}}, both text in UTF-8"
        )
    fields = {name: value for name, value in message.items() if value is not None or name == "content"}
    content, others = fields.get("content"), fields.keys() - {"role", "content"}
    if isinstance(content, list):
        _check_parts(content, column)
    elif not (is_text(content) or (content is None and others)):
        raise BadRow(
            f"column {column!r} holds {_short(message)}; each message is {{role, content}}, both text in UTF-8"
        )
    return fields


def _check_parts(parts: Sequence[Any], column: str) -> None:
    for part in parts:
        if not (isinstance(part, dict) and part.get("type", "text") == "text" and is_text(part.get("text"))):
            raise BadRow(
                f"column {column!r} holds {_short(part)} as a part of a message; models are trained on text:"
                " each part is {type: text, text}"
            )


def read_prompt(row: Mapping[str, Any]) -> Conversation:
    """The prompt of an RL row.

    Raises:
        BadRow: a column that RL needs is wrong.
    """
    if not isinstance(row.get("reward_model"), dict | None):
        raise BadRow(f"column 'reward_model' is {_short(row['reward_model'])}; it must be {{style, ground_truth}}")
    if not isinstance(row.get("data_source"), str):
        raise BadRow(f"column 'data_source' is {_short(row.get('data_source'))}; it must be text")
    if not isinstance(row.get("extra_info"), dict | None):
        raise BadRow(f"column 'extra_info' is {_short(row['extra_info'])}; it must be a mapping")
    key = repr((row["data_source"], ground_truth(row)))
    return Conversation(read_messages(row, "prompt"), tools=_tools(row), key=key)


def read_answered(row: Mapping[str, Any]) -> Conversation:
    """The prompt of an RL row, and its column response.

    Raises:
        BadRow: a column that RL needs is wrong, or the row has no response.
    """
    asked, response = read_prompt(row), row.get("response")
    if not is_text(response):
        raise BadRow(f"column 'response' is {_short(response)}; preset spin needs text in UTF-8")
    return replace(asked, answer={"role": "assistant", "content": response})


def ground_truth(row: Mapping[str, Any]) -> Any:
    """reward_model.ground_truth; None if the row has none."""
    return (row.get("reward_model") or {}).get("ground_truth")


def read_supervised(row: Mapping[str, Any]) -> Conversation:
    """The prompt and the answer of a supervised row: columns prompt and response, or messages.

    Raises:
        BadRow: the row has neither, or they are wrong.
    """
    if row.get("response") is not None:
        if not is_text(row["response"]):
            raise BadRow(f"column 'response' is {_short(row['response'])}; it must be text in UTF-8")
        answer = {"role": "assistant", "content": row["response"]}
        return Conversation(read_messages(row, "prompt"), answer, _tools(row))
    messages = read_messages(row, "messages")
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    if last == 0:
        raise BadRow("column 'messages' has no assistant message after the first message; add one")
    return Conversation(messages[:last], messages[last], _tools(row))


def read_answer(row: Mapping[str, Any], column: Literal["chosen", "rejected"]) -> Conversation:
    """The prompt and one answer of a row of preferences.

    The answer is text, a list of one assistant message, or, in a row without prompt, a whole conversation of which
    the messages before its last are the prompt.

    Raises:
        BadRow: a column is missing or wrong, or the two conversations differ before their last message.
    """
    answer = row.get(column)
    if isinstance(answer, str):
        if not is_text(answer):
            raise BadRow(f"column {column!r} is {_short(answer)}; it must be text in UTF-8")
        return Conversation(read_messages(row, "prompt"), {"role": "assistant", "content": answer}, _tools(row))
    *before, last = read_messages(row, column)
    if last["role"] != "assistant":
        raise BadRow(f"column {column!r} ends with a message of {last['role']!r}; it must end with the assistant's")
    if row.get("prompt") is not None:
        if before:
            raise BadRow(f"column {column!r} has {len(before) + 1} messages beside a prompt; it must have one")
        return Conversation(read_messages(row, "prompt"), last, _tools(row))
    other = "rejected" if column == "chosen" else "chosen"
    if not before or list(read_messages(row, other)[:-1]) != before:
        raise BadRow("columns 'chosen' and 'rejected' must begin with the same prompt: correct them, or add 'prompt'")
    return Conversation(before, last, _tools(row))


def _tools(row: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """Column tools: a list of JSON schemas, or that list as JSON text, because tables mix schemas badly."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise BadRow(f"column 'tools' is not JSON: {error}; write a list of JSON schemas") from error
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise BadRow(f"column 'tools' is {_short(tools)}; it must be a list of JSON schemas")
    return tools or None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
