"""Rows as token ids: tokenised once at the start, in batches, and kept in one flat array."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import structlog
from numpy.typing import NDArray

from rljob_trainer.data.conversation import ChatFormat, Conversation
from rljob_trainer.data.rows import BadRow, Rows
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


Encoded = tuple[list[int], int, str]
"""Token ids, length of the prompt, the conversation's key."""


def tokenize(
    rows: Rows, read: Callable[[Mapping[str, Any]], Conversation], chat: ChatFormat, limits: Limits
) -> TokenizedRows:
    """Tokenise all rows and filter those that are too long.

    Raises:
        DataError: a row is malformed, or too long if that is an error, or no row fits.
    """
    collector = _Collector(rows, limits)
    reported = time.monotonic()
    for batch in rows.batches():
        texts = [_parse(rows, collector.seen + i, row, read, chat) for i, row in enumerate(batch)]
        for encoded in _encode(texts, chat):
            collector.add(*encoded)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            log.info("tokenizing", rows=collector.seen, total=len(rows))
    return collector.finish()


Text = tuple[str, str | None, str]


def _parse(
    rows: Rows, index: int, row: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Conversation], chat: ChatFormat
) -> Text:
    try:
        conversation = read(row)
        return chat.render(conversation.messages), conversation.response, conversation.key
    except BadRow as error:
        raise rows.error(index, str(error)) from error


def _encode(texts: list[Text], chat: ChatFormat) -> list[Encoded]:
    prompts = chat.encode([prompt for prompt, _, _ in texts])
    keys = [key for _, _, key in texts]
    if texts[0][1] is None:
        return [(ids, len(ids), key) for ids, key in zip(prompts, keys, strict=True)]
    end = [chat.tokenizer.eos_token_id]
    responses = chat.encode([response or "" for _, response, _ in texts])
    return [
        (prompt + response + end, len(prompt), key)
        for prompt, response, key in zip(prompts, responses, keys, strict=True)
    ]


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
