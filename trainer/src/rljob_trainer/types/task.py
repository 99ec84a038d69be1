"""One attempt at one row of data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

Message = Mapping[str, Any]
"""{role, content} and what else the row's message has, such as tool_calls.

content: text, or a list of {type: text, text}; None beside other fields."""


def text_of(message: Message) -> str:
    """The text of a message's content; "" if it has none."""
    content = message.get("content")
    return "".join(part["text"] for part in content) if isinstance(content, list) else content or ""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt that the policy has to answer.

    id: "EPOCH/ROW/TRY", unique within a run and the same after a resume. TRY grows when the task is issued again.
    messages: the conversation of the row.
    token_ids: [P], the rendered conversation, which the first turn continues.
    ground_truth, extra_info, data_source: the row's own, for rewards and environments. ground_truth: None without.
    response: [R], the row's own response with its end token, if the policy's are compared with it (spin); else None.
    """

    id: str
    messages: Sequence[Message]
    token_ids: Ids
    ground_truth: Any
    extra_info: Mapping[str, Any]
    data_source: str
    response: Ids | None = None

    def again(self) -> "Task":
        """The same task, issued once more: its episodes have new seeds and are recorded under a new id."""
        return replace(self, id=next_try(self.id))


def next_try(task_id: str) -> str:
    """The id of the task once it is issued again: TRY + 1."""
    row, _, attempt = task_id.rpartition("/")
    return f"{row}/{int(attempt) + 1}"
