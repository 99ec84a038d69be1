r"""A tokenizer and its chat template: the one place where a conversation becomes text and token ids.

A prompt ends where the model begins to answer. A supervised row is the template's own rendering of prompt and answer:

    <|im_start|>user\nSay 7<|im_end|>\n<|im_start|>assistant\n  7<|im_end|>  \n
    prompt, as RL renders it                                    target        never generated, so not trained
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import jinja2

from rljob_trainer.data.rows import BadRow, is_text
from rljob_trainer.data.turn_end import TEMPLATE_ERRORS, turn_end
from rljob_trainer.errors import DataError
from rljob_trainer.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ARGUMENTS = "spec.data.templateArguments"
CONTINUE = "continue_final_message"
_OURS = (
    "add_generation_prompt", "chat_template", "conversation", "documents", "max_length", "messages", "padding",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "strftime_now", "tokenize", "tokenizer_kwargs",
    "tools", "truncation",
)  # fmt: skip
"""Arguments that rows and trainer determine."""

Tools = Sequence[Mapping[str, Any]] | None


class ChatFormat:
    """end: the token that ends the assistant's turn.

    arguments: of the template (data.templateArguments). now: the time that the template sees; None for the present.

    Raises DataError if the tokenizer has no template, or the template does not read an argument.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", arguments: Mapping[str, Any] | None = None,
        now: datetime | None = None,
    ) -> None:  # fmt: skip
        if not tokenizer.chat_template:
            raise DataError("the tokenizer has no chat template; set this field", field="spec.model.chatTemplate")
        self.tokenizer = tokenizer
        self._arguments = dict(arguments or {})
        self._continues = bool(self._arguments.pop(CONTINUE, False))
        check_arguments(self._arguments)
        _check_read(self._arguments, str(tokenizer.chat_template))
        self._arguments["strftime_now"] = (now or datetime.now(UTC)).strftime
        self.end = turn_end(tokenizer)

    def render(self, messages: Sequence[Message], tools: Tools = None) -> str:
        """The prompt as the model sees it, up to where its response begins.

        Raises:
            BadRow: the template rejects the conversation, or prints a list of parts as Python does.
        """
        continues = self._continues and messages[-1]["role"] == "assistant"
        return self._apply(messages, tools, **{CONTINUE if continues else "add_generation_prompt": True})

    def render_whole(self, messages: Sequence[Message], tools: Tools = None) -> str:
        """The conversation as it is, with nothing behind its last message. Raises BadRow as render."""
        return self._apply(messages, tools)

    def render_answered(self, messages: Sequence[Message], answer: Message, tools: Tools = None) -> tuple[str, str]:
        """Prompt and answer as the template renders them: the text before the answer, and the whole text.

        Raises:
            BadRow: as render, or the template renders nothing for the answer.
        """
        prompt = self.render(messages, tools)
        if self._continues and messages[-1]["role"] == "assistant":
            answer = {**answer, "content": f"{messages[-1]['content']}{answer['content']}"}
            messages = messages[:-1]
        whole = self._apply([*messages, answer], tools)
        before = prompt if whole.startswith(prompt) else _shared(prompt, whole, answer)
        if not whole[len(before) :].strip():
            raise BadRow("the chat template renders nothing for the assistant's message; fill it, or remove the row")
        return before, whole

    def _apply(self, messages: Sequence[Message], tools: Tools, **mode: bool) -> str:
        try:
            text = str(
                self.tokenizer.apply_chat_template(
                    list(messages), tools=tools, tokenize=False, **mode, **self._arguments
                )
            )
        except jinja2.TemplateSyntaxError as error:
            raise DataError(f"line {error.lineno}: {error.message}", field="spec.model.chatTemplate") from error
        except TEMPLATE_ERRORS as error:
            raise BadRow(f"the chat template rejects the conversation: {str(error) or type(error).__name__}") from error
        if any(isinstance(each.get("content"), list) and str(each["content"]) in text for each in messages):
            raise BadRow("the chat template takes no list of parts; write the text itself as content")
        if not is_text(text):
            raise BadRow("the conversation is not text in UTF-8; remove unpaired surrogates")
        return text

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, with no token added."""
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def encode_answered(self, texts: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
        """Token ids of each pair of render_answered up to the answer's end token, and how many belong to the prompt."""
        befores = self.encode([before for before, _ in texts])
        wholes = self.encode([whole for _, whole in texts])
        return [self._ended(*each) for each in zip(befores, wholes, texts, strict=True)]

    def _ended(self, before: list[int], whole: list[int], texts: tuple[str, str]) -> tuple[list[int], int]:
        prompt, answer = len(before), texts[1][len(texts[0]) :]
        # A token may span the border; the policy's own answers begin after the prompt's last token.
        target = whole[prompt:] if whole[:prompt] == before else self.encode([answer])[0]
        if self.end in target:
            return before + target[: len(target) - target[::-1].index(self.end)], prompt
        target = self.encode([answer.rstrip()])[0]
        if target[-1] in self.tokenizer.added_tokens_decoder:  # such as the end of a call of a tool
            return before + target, prompt
        return before + target + [self.end], prompt  # instead of the new line with which this template ends a turn


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise DataError for an argument that rows or the trainer determine."""
    for name in arguments:
        if name in _OURS:
            raise DataError("the trainer sets this argument; remove it", field=f"{ARGUMENTS}.{name}")


def _check_read(arguments: Mapping[str, Any], template: str) -> None:
    for name in arguments:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise DataError("the chat template has no such argument; correct or remove it", field=f"{ARGUMENTS}.{name}")


def _shared(prompt: str, whole: str, answer: Message) -> str:
    """The part of `prompt` that `whole` begins with, if the template opens an answer otherwise than it renders one."""
    shared = prompt[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, whole, strict=False)))]
    content = answer.get("content")
    start = whole.rfind(content.strip()) if isinstance(content, str) else -1
    return shared[:start] if 0 <= start < len(shared) else shared
