"""The columns of rows in verl's format, and what a row cannot have.

data_source   str                                   passed to the reward
prompt        list of {role, content, ...}
reward_model  {style, ground_truth}, optional       passed to the reward
extra_info    mapping, optional                     passed to the reward
response      str                                   a supervised target
messages      list of {role, content, ...}          a supervised conversation, instead of prompt and response
chosen        str or list of messages               a preferred answer (preset dpo)
rejected      str or list of messages               the answer that it is preferred to
tools         list of JSON schemas, optional        rendered by the chat template
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

RL = ("data_source", "prompt", "reward_model", "extra_info", "tools")
SUPERVISED = ("prompt", "response", "messages", "tools")
PREFERENCE = ("prompt", "chosen", "rejected", "tools")
COLUMNS = tuple(dict.fromkeys((*RL, *SUPERVISED, *PREFERENCE)))
EXPECTED = ("ability", *RL, "response")
"""Columns of verl's format, which every kind of training may find and leave."""

MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""Columns that no model here reads; a prompt that refers to them means nothing without."""

Row = Mapping[str, Any]


class BadRow(ValueError):
    """What is wrong with a row; the caller adds file and row number."""


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is text that UTF-8 can encode: JSON may contain unpaired surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def without_filler(row: Row) -> Row:
    """The row of a table of Arrow, without the nulls that stand for keys which a nested object lacks.

    The message's own fields stay, because only some templates treat a missing content as an empty one.
    """
    conversations = ("prompt", "messages", "chosen", "rejected")
    changed = {name: [_own(each) for each in row[name]] for name in conversations if _is_list(row.get(name))}
    if _is_list(row.get("tools")):
        changed["tools"] = _compact(row["tools"])
    return {**row, **changed}


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _own(message: Any) -> Any:
    return {name: _compact(value) for name, value in message.items()} if isinstance(message, dict) else message


def _compact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _compact(each) for name, each in value.items() if each is not None}
    return [_compact(each) for each in value] if isinstance(value, list) else value
