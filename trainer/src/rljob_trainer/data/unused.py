"""What a job's rows hold and its training does not use: named once, so that nothing vanishes silently."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from rljob_trainer.data.conversation import Conversation
from rljob_trainer.data.rows import BadRow

log = structlog.get_logger()

LOOKS = 100
"""Rows in which a field may change the rendered text before it counts as unused."""

_READ = {"role", "content"}
TOOLS = "tools"


class Unused:
    """Finds the columns that are not in `used`, and the fields of messages without which `render` gives the same."""

    def __init__(self, used: Iterable[str], render: Callable[[Conversation], str]) -> None:
        self._used, self._render = set(used), render
        self._columns: set[str] = set()
        self._looks: dict[str, int] = {}
        self._rendered = set(_READ)

    def saw_columns(self, names: Iterable[str]) -> None:
        self._columns.update(names)

    def saw(self, conversation: Conversation, text: str) -> None:
        """text: what `conversation` was rendered to."""
        for name in _fields(conversation) - self._rendered:
            self._looks[name] = self._looks.get(name, 0) + 1
            if self._looks[name] <= LOOKS and self._changes(conversation, name, text):
                self._rendered.add(name)

    def _changes(self, conversation: Conversation, name: str, text: str) -> bool:
        try:
            return self._render(_without(conversation, name)) != text
        except BadRow:  # the template needs it
            return True

    def report(self, field: str) -> None:
        """Warn of all of them. field: of the spec, which names the data."""
        if columns := sorted(self._columns - self._used):
            log.warning("columns_not_used", columns=", ".join(columns), data=field)
        if fields := sorted(set(self._looks) - self._rendered):
            log.warning("message_fields_not_used", fields=", ".join(fields), data=field, by="the chat template")


def _fields(conversation: Conversation) -> set[str]:
    messages = [*conversation.messages, *([conversation.answer] if conversation.answer else [])]
    names = {name for message in messages for name, value in message.items() if value not in (None, "", [], {})}
    return names | ({TOOLS} if conversation.tools else set())


def _without(conversation: Conversation, name: str) -> Conversation:
    if name == TOOLS:
        return replace(conversation, tools=None)
    messages = [_less(message, name) for message in conversation.messages]
    answer = _less(conversation.answer, name) if conversation.answer else None
    return replace(conversation, messages=messages, answer=answer)


def _less(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return {key: value for key, value in message.items() if key != name}
