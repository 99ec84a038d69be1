"""From a row to text: validates the row and applies the chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2

from rljob_trainer.data.rows import BadRow, is_text
from rljob_trainer.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One row's prompt and, for supervised training, response. key: other content that the fingerprint covers."""

    messages: Messages
    response: str | None
    key: str


def read_messages(row: Mapping[str, Any], column: str) -> Messages:
    """The conversation in `column`.

    Raises:
        BadRow: it is not a non-empty list of {role, content}, both UTF-8 text.
    """
    messages = row.get(column)
    if not isinstance(messages, list) or not messages:
        raise BadRow(f"column {column!r} is {_short(messages)}; it must be a list of {{role, content}}")
    for message in messages:
        if not (isinstance(message, dict) and all(is_text(message.get(key)) for key in ("role", "content"))):
            raise BadRow(
                f"column {column!r} holds {_short(message)}; each message is {{role, content}}, both text in UTF-8"
            )
    return [{"role": message["role"], "content": message["content"]} for message in messages]


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
    return Conversation(read_messages(row, "prompt"), None, repr((row["data_source"], ground_truth(row))))


def ground_truth(row: Mapping[str, Any]) -> Any:
    """Of an RL row; None if it has none."""
    return (row.get("reward_model") or {}).get("ground_truth")


def read_supervised(row: Mapping[str, Any]) -> Conversation:
    """The prompt and the response of a supervised row: columns prompt and response, or messages.

    Raises:
        BadRow: the row has neither, or they are wrong.
    """
    if row.get("response") is not None:
        if not is_text(row["response"]):
            raise BadRow(f"column 'response' is {_short(row['response'])}; it must be text in UTF-8")
        return Conversation(read_messages(row, "prompt"), row["response"], "")
    messages = read_messages(row, "messages")
    last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=0)
    if last == 0:
        raise BadRow("column 'messages' has no assistant message after the first message; add one")
    return Conversation(messages[:last], messages[last]["content"], "")


class ChatFormat:
    """A tokenizer and its chat template: the one place where text becomes token ids."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        if not tokenizer.chat_template:
            raise DataError("the tokenizer has no chat template; set this field", field="spec.model.chatTemplate")
        self.tokenizer = tokenizer

    def render(self, messages: Messages) -> str:
        """The prompt as the model sees it, up to where its response begins.

        Raises:
            BadRow: the template rejects the conversation.
        """
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except jinja2.TemplateSyntaxError as error:
            raise DataError(f"line {error.lineno}: {error.message}", field="spec.model.chatTemplate") from error
        except jinja2.TemplateError as error:
            raise BadRow(f"the chat template rejects the conversation: {error}") from error
        return str(text)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, with no token added."""
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
