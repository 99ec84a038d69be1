r"""Messages to tokens: what was sampled stays as it was sampled, and only new messages are rendered and tokenised.

    first turn    <|user|>4+4?<|assistant|>                            rendered, or the task's own tokens
                                           8<|end|>                    sampled
    second turn   render(conversation) = ...<|assistant|>8<|end|>  \n<|user|>Sure?<|assistant|>
                                           render without the new messages    only this is tokenised

This holds only if the template renders the history as it did before. One that rewrites it, such as one that removes
the thinking of former answers, gives the turn a context of its own: the policy must read what it will read later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from rljob_trainer.data.chat import ChatFormat, Tools
from rljob_trainer.data.rows import BadRow
from rljob_trainer.environments.tool_calls import ParseCalls, parse_tool_calls
from rljob_trainer.types import Ids, Message, Task

log = structlog.get_logger()


class Tokenized:
    """A chat template with its tokenizer, for all episodes of a job.

    ends: ids of tokens that end a turn. parse: finds the calls of tools in an answer.
    rows: of the model's table of tokens, which may have more than the tokenizer has tokens.
    """

    def __init__(
        self, chat: ChatFormat, ends: set[int], parse: ParseCalls = parse_tool_calls, rows: int = 0
    ) -> None:  # fmt: skip
        self.chat, self.ends, self.parse = chat, ends | {chat.end}, parse
        self.rows = max(rows, len(chat.tokenizer))
        template = str(chat.tokenizer.chat_template)
        self.shows_calls = "tool_calls" in template
        self._shows_tools = "tools" in template
        self._said: set[str] = set()

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text with special tokens, but without the token that ended it."""
        ids = list(token_ids)
        return self.text(ids[:-1] if ids and ids[-1] in self.ends else ids)

    def text(self, token_ids: Sequence[int]) -> str:
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return str(self.chat.tokenizer.decode(list(token_ids), **options))

    def check_tools(self, tools: Tools) -> None:
        if tools and not self._shows_tools:
            self.say("template_shows_no_tools", "the prompt has to describe them: model.chatTemplate ignores tools")

    def say(self, event: str, reason: str) -> None:
        """Log something once in a run."""
        if event not in self._said:
            self._said.add(event)
            log.warning(event, reason=reason)


@dataclass(frozen=True, slots=True)
class _Said:
    """A turn that was taken.

    messages: with the answer. prompt: the text before the answer. token_ids: prompt and answer, as sampled.
    """

    messages: Sequence[Message]
    tools: Tools
    prompt: str
    token_ids: Ids


class Conversation:
    """The messages of one episode."""

    def __init__(self, task: Task, tokenized: Tokenized) -> None:
        self._task, self._tokenized, self._chat = task, tokenized, tokenized.chat
        self._said: list[_Said] = []
        self._calls = 0
        self._texts: dict[str, str] = {}  # of answers whose calls the template rejects, by the id of the first call

    def prompt(self, messages: Sequence[Message], tools: Tools) -> tuple[Ids, str]:
        """Tokens and text of the conversation up to where the policy answers.

        Raises BadRow for a conversation that the template rejects.
        """
        self._tokenized.check_tools(tools)
        text = self._chat.render(self._shown(messages), tools)
        if (said := self._continued(messages, tools)) is not None:
            added = self._added(said, tools, text)
            if added is not None:
                return np.concatenate([said.token_ids, added]).astype(np.int32), text
            self._tokenized.say(
                "template_rewrites_history", "an answer is rendered otherwise in later turns, which begin a trajectory"
            )
        if tools is None and list(messages) == list(self._task.messages):
            return self._task.token_ids, text
        return np.array(self._chat.encode([text])[0], np.int32), text

    def answered(
        self, messages: Sequence[Message], tools: Tools, prompt: str, token_ids: Ids, answer: Ids, *,
        stop: Sequence[str] = (), whole_calls: bool = False,
    ) -> Message:  # fmt: skip
        """The message of an answer [R] to the prompt `token_ids` [P].

        stop: its content ends before the first of these strings. whole_calls: a broken call of a tool is text.
        Raises BadRow for tools that the parser rejects.
        """
        text = before_stop(self._tokenized.decode(answer.tolist()), stop)
        content, calls = self._tokenized.parse(text, tools) if tools else (text, [])
        if whole_calls and not all(call.name for call in calls):
            content, calls = text, []
        message: dict[str, Any] = {"role": "assistant", "content": content if self._tokenized.shows_calls else text}
        if calls:
            message["tool_calls"] = [call.message(self._calls + index) for index, call in enumerate(calls)]
            self._calls += len(calls)
            self._show_calls([*messages, message], tools, text)
        self._said.append(_Said([*messages, message], tools, prompt, np.concatenate([token_ids, answer])))
        return message

    def _show_calls(self, messages: Sequence[Message], tools: Tools, text: str) -> None:
        """Have the template show the last message as `text` if it rejects its calls: the fault is the policy's.

        Some take one call an answer, or no arguments but an object.
        """
        try:
            self._chat.render_whole(self._shown(messages), tools)
        except BadRow:
            self._texts[messages[-1]["tool_calls"][0]["id"]] = text

    def _shown(self, messages: Sequence[Message]) -> list[Message]:
        """The messages as the template gets them."""
        return [self._as_text(message) if self._texts else message for message in messages]

    def _as_text(self, message: Message) -> Message:
        match message:
            case {"tool_calls": [{"id": str(first)}, *_]} if first in self._texts:
                return {"role": "assistant", "content": self._texts[first]}
        return message

    def _continued(self, messages: Sequence[Message], tools: Tools) -> _Said | None:
        """The longest part of the conversation that the policy has answered."""
        fitting = [
            said
            for said in self._said
            if said.tools == tools and list(messages[: len(said.messages)]) == list(said.messages)
        ]
        return max(fitting, key=lambda said: len(said.messages), default=None)

    def _added(self, said: _Said, tools: Tools, text: str) -> list[int] | None:
        """Tokens of what follows the answer of `said`; None if the template rewrites what comes before."""
        shown, prompt = self._shown(said.messages), said.prompt
        whole = self._chat.render_whole(shown, tools)
        end = self._tokenized.text([self._chat.end])
        ended = whole.rfind(end, len(prompt))
        before = whole[: ended + len(end)] if ended >= 0 else whole.rstrip()  # a template may end turns with a new line
        content = str(shown[-1]["content"])
        kept = whole.startswith(prompt) and _squeezed(content) in _squeezed(before[len(prompt) :])
        if not (kept and text.startswith(before)):
            return None
        cut_off = ended >= 0 and said.token_ids[-1] not in self._tokenized.ends
        return [self._chat.end] * cut_off + self._chat.encode([text[len(before) :]])[0]


def before_stop(text: str, stop: Sequence[str]) -> str:
    """The text before the first of these strings."""
    return text[: min((at for each in stop if (at := text.find(each)) >= 0), default=len(text))]


def _squeezed(text: str) -> str:
    """Templates trim text, and put new lines around thinking."""
    return "".join(text.split())
