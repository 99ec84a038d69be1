"""Rows as token ids: tokenised once at the start, in batches, and kept in one flat array."""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import structlog
from numpy.typing import NDArray

from rljob_trainer.data.chat import ChatFormat
from rljob_trainer.data.columns import EXPECTED, MEDIA, BadRow, Row
from rljob_trainer.data.conversation import Conversation
from rljob_trainer.data.rows import Rows, media_error
from rljob_trainer.data.unused import Unused
from rljob_trainer.errors import DataError
from rljob_trainer.types import Ids

log = structlog.get_logger()
REPORT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest prompt and response in tokens, and whether a longer row is filtered or an error."""

    prompt_tokens: int
    response_tokens: int
    overlong: Literal["filter", "fail"]


@dataclass(frozen=True, slots=True)
class TokenizedRows:
    """The rows within the limits.

    rows: [N], row numbers in the files.
    token_ids: [all tokens], row after row; row i is token_ids[ends[i - 1]:ends[i]].
    prompt_tokens: [N], length of each row's prompt in tokens.
    """

    rows: NDArray[np.int64]
    token_ids: Ids
    ends: NDArray[np.int64]
    prompt_tokens: NDArray[np.int32]
    fingerprint: str

    def ids(self, index: int) -> Ids:
        """Token ids of row `index`: [T]."""
        return self.token_ids[self.ends[index - 1] if index else 0 : self.ends[index]]


Read = Callable[[Row], Conversation]

Encoded = tuple[list[int], int, str]
"""Token ids, length of the prompt, the conversation's key."""


def tokenize(rows: Rows, read: Read, columns: Sequence[str], chat: ChatFormat, limits: Limits) -> TokenizedRows:
    """Tokenise all rows and filter those that are too long. columns: that `read` reads.

    Raises:
        DataError: a row is malformed, or too long if that is an error, or no row fits.
    """
    collector, unused = _Collector(rows, limits), Unused({*columns, *EXPECTED}, lambda each: _render(each, chat)[-1])
    for source in rows.sources:
        unused.saw_columns(source.table.columns)
    reported = time.monotonic()
    for batch in rows.batches():
        texts = []
        for i, row in enumerate(batch):
            unused.saw_columns(row)
            try:
                texts.append(_parse(row, read, chat, unused))
            except BadRow as error:
                raise rows.error(collector.seen + i, str(error)) from error
        for encoded in _encode(texts, chat):
            collector.add(*encoded)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            log.info("tokenizing", rows=collector.seen, total=len(rows))
    unused.report(rows.sources[0].field.partition("[")[0])
    return collector.finish()


Texts = tuple[str] | tuple[str, str]
"""The prompt; of a supervised row what comes before the answer, and the whole text."""


def _parse(row: Row, read: Read, chat: ChatFormat, unused: Unused) -> tuple[Texts, str]:
    for column in MEDIA:
        if row.get(column):
            raise BadRow(media_error(column))
    conversation = read(row)
    texts = _render(conversation, chat)
    unused.saw(conversation, texts[-1])
    return texts, conversation.key


def _render(conversation: Conversation, chat: ChatFormat) -> Texts:
    if conversation.answer is None:
        return (chat.render(conversation.messages, conversation.tools),)
    return chat.render_answered(conversation.messages, conversation.answer, conversation.tools)


def _encode(rows: Sequence[tuple[Texts, str]], chat: ChatFormat) -> list[Encoded]:
    keys = [key for _, key in rows]
    pairs = [texts for texts, _ in rows if len(texts) == 2]
    if pairs:
        return [(ids, prompt, key) for (ids, prompt), key in zip(chat.encode_answered(pairs), keys, strict=True)]
    prompts = chat.encode([texts[0] for texts, _ in rows])
    return [(ids, len(ids), key) for ids, key in zip(prompts, keys, strict=True)]


class _Collector:
    """Collects tokenised rows for TokenizedRows."""

    def __init__(self, rows: Rows, limits: Limits) -> None:
        self.seen = 0
        self._rows = rows
        self._limits = limits
        self._kept: list[int] = []
        self._ids: list[Ids] = []
        self._prompt_tokens: list[int] = []
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, ids: list[int], prompt_tokens: int, key: str) -> None:
        index = self.seen
        self.seen += 1
        reason = self._too_long(prompt_tokens, len(ids) - prompt_tokens)
        if reason is not None:
            if self._limits.overlong == "fail":
                raise self._rows.error(index, f"{reason}; raise the limit, or set overlongPrompts: filter")
            return
        array = np.asarray(ids, dtype=np.int32)
        self._kept.append(index)
        self._ids.append(array)
        self._prompt_tokens.append(prompt_tokens)
        self._hash.update(f"{index} {len(ids)} {prompt_tokens} {len(key)} {key}".encode())
        self._hash.update(array.tobytes())

    def finish(self) -> TokenizedRows:
        if not self._kept:
            raise DataError(
                f"all {self.seen} rows are longer than maxPromptTokens ({self._limits.prompt_tokens})"
                f" or maxResponseTokens ({self._limits.response_tokens}); raise the limits",
                field="spec.data.maxPromptTokens",
            )
        filtered = self.seen - len(self._kept)
        log.log(
            logging.WARNING if filtered else logging.INFO, "rows_tokenized", rows=len(self._kept), filtered=filtered
        )
        return TokenizedRows(
            rows=np.asarray(self._kept),
            token_ids=np.concatenate(self._ids),
            ends=np.cumsum([len(ids) for ids in self._ids]),
            prompt_tokens=np.asarray(self._prompt_tokens, dtype=np.int32),
            fingerprint=self._hash.hexdigest(),
        )

    def _too_long(self, prompt_tokens: int, response_tokens: int) -> str | None:
        limits = self._limits
        if prompt_tokens > limits.prompt_tokens:
            return f"the prompt has {prompt_tokens} tokens, but data.maxPromptTokens is {limits.prompt_tokens}"
        if response_tokens > limits.response_tokens:
            return f"the response has {response_tokens} tokens, but data.maxResponseTokens is {limits.response_tokens}"
        return None
