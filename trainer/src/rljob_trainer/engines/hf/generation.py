"""Continuous batching of engine hf.

    submit ──> queue ──admit──> rows of the batch ──decode step──> one token more for every active row
                 ^                                      │
                 └──── a finished row's slot is free ◄──┴──> its Completion is returned at once

Batch and KV cache are as large as what is unfinished asks for, grow with what comes, and go when nothing is left. A
model without a decoder has no KV cache: each step reads the whole rows again.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from rljob_trainer.engines.engine import Completion, EngineSettings, Request
from rljob_trainer.engines.hf.batch import Batch, Row
from rljob_trainer.engines.hf.decoder import Decoder
from rljob_trainer.engines.hf.slots import SlotCache
from rljob_trainer.engines.stop import StopStrings
from rljob_trainer.types import Ids

REFILL_SHARE = 1 / 16
"""Free slots are refilled when this share of them is free: a prompt pass costs a step, however few rows it fills."""

PREFILL_TOKENS = 16_384
"""Prompt tokens, padding included, in one pass."""

GROWTH = 1.5
"""Batch and cache grow by this factor at least, because all of both is copied."""


class Generation:
    """All unfinished samples of an engine, with their batch and their KV cache."""

    def __init__(
        self, model: Any, decoder: Decoder | None, settings: EngineSettings, end_ids: Tensor, stops: StopStrings
    ) -> None:
        self.model, self.decoder, self.settings, self.stops = model, decoder, settings, stops
        self.device = end_ids.device
        self.queue: deque[Row] = deque()
        self.batch = Batch(end_ids)
        self.cache = SlotCache(model.config.get_text_config().num_hidden_layers)
        self.tokens = self.capacity = 0

    @property
    def unfinished(self) -> int:
        return len(self.queue) + self.batch.active

    def add(self, request: Request) -> None:
        sampling, prompt = request.sampling, len(request.token_ids)
        kind = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.stop)
        limit = min(sampling.max_tokens, self.settings.max_model_len - prompt)
        self.tokens, self.capacity = max(self.tokens, limit), max(self.capacity, prompt + limit)
        self.queue.extend(Row(request, sample, kind, limit) for sample in range(len(request.seeds)))

    def step(self, version: int) -> list[Completion]:
        """One pass over prompts or one decode step, by the weights of `version`; what ended with it."""
        free = self.settings.max_num_seqs - self.batch.active
        if self.queue and free >= self.settings.max_num_seqs * REFILL_SHARE:
            self._prefill(free)
        else:
            self._decode()
        return self._collect(version)

    @torch.inference_mode()
    def _prefill(self, free: int) -> None:
        """Admit rows from the queue and sample their next tokens; equal prompts are computed once."""
        self._fit()
        rows, contexts, source = self._take(free)
        cache = None if self.decoder is None else DynamicCache()  # whole, also for layers with a window
        logits = self._read(contexts, cache)
        context_of_row = torch.tensor(source, device=self.device)
        if cache is not None:
            self.cache.admit(cache, self.batch.active, context_of_row)
        self.batch.append(self.batch.admit(rows), logits[context_of_row])

    def _read(self, contexts: Sequence[Ids], cache: DynamicCache | None) -> Tensor:
        """Logits [contexts, V] of the token behind each."""
        ids, last = _padded(contexts, self.device)
        needed, where = last.unique(return_inverse=True)
        keeping = {"use_cache": False} if cache is None else {"use_cache": True, "past_key_values": cache}
        logits: Tensor = self.model(ids, logits_to_keep=needed, **keeping).logits
        return logits[torch.arange(len(contexts), device=self.device), where]

    def _fit(self) -> None:
        """Make batch and cache large enough for what is there."""
        wanted = min(self.settings.max_num_seqs, self.unfinished)
        slots = _enough(self.batch.slots, wanted, self.settings.max_num_seqs)
        capacity = _enough(self.cache.capacity, self.capacity, self.settings.max_model_len)
        self.batch.fit(slots, _enough(self.batch.width, self.tokens, self.settings.max_model_len))
        self.cache.fit(slots, capacity)

    def _take(self, free: int) -> tuple[list[Row], list[Ids], list[int]]:
        """Up to `free` rows of the queue, their distinct contexts, and the context of each row."""
        rows: list[Row] = []
        source: list[int] = []
        index: dict[bytes, int] = {}
        contexts: list[Ids] = []
        longest = 0
        while self.queue and len(rows) < free:
            ids = self.queue[0].context
            key = ids.tobytes()
            if key not in index:
                longest = max(longest, len(ids))
                if contexts and longest * (len(contexts) + 1) > PREFILL_TOKENS:
                    break
                index[key] = len(contexts)
                contexts.append(ids)
            source.append(index[key])
            rows.append(self.queue.popleft())
        return rows, contexts, source

    @torch.inference_mode()
    def _decode(self) -> None:
        """Sample one more token for each active row."""
        rows = slice(self.batch.active)
        if self.decoder is None:
            self.batch.append(rows, torch.cat([self._read(each, None) for each in _passes(self.batch.contexts())]))
            return
        positions = self.batch.lengths[rows] - 1
        longest = int(positions.max()) + 1
        self.cache.expect(positions, longest)
        self.batch.append(rows, self.decoder.step(self.batch.last_ids()[:, 0], positions, self.cache))

    @torch.inference_mode()
    def _collect(self, version: int) -> list[Completion]:
        """Take finished rows out of the batch."""
        ended = self.batch.ended(self.stops)
        finished = ended | (self.batch.counts >= self.batch.limits)[: self.batch.active]
        where = finished.nonzero()[:, 0].tolist()
        if not where:
            return []
        rows = self.batch.read(where, version)
        self.cache.move(*self.batch.remove(where))
        return [
            row.completion("stop" if stop else "length") for row, stop in zip(rows, ended[where].tolist(), strict=True)
        ]

    @torch.inference_mode()
    def abort(self, request_ids: Collection[str]) -> None:
        self.queue = deque(row for row in self.queue if row.request.id not in request_ids)
        where = [index for index, row in enumerate(self.batch.rows) if row.request.id in request_ids]
        if where:
            self.cache.move(*self.batch.remove(where))

    @torch.inference_mode()
    def unload(self, version: int) -> None:
        """Put the active rows back to the front of the queue, with the tokens that `version` has sampled for them.

        Their KV cache goes: what comes next is computed with other weights.
        """
        if self.batch.active:
            self.queue.extendleft(reversed(self.batch.read(list(range(self.batch.active)), version)))
            self.batch = Batch(self.batch.end_ids)
            self.cache.clear()


def _passes(contexts: Sequence[Ids]) -> Iterator[Sequence[Ids]]:
    """In order, as many at a time as PREFILL_TOKENS allows."""
    count = max(1, PREFILL_TOKENS // max(len(each) for each in contexts))
    return (contexts[start : start + count] for start in range(0, len(contexts), count))


def _enough(present: int, wanted: int, most: int) -> int:
    """`wanted` at first; later at least GROWTH times what there is, if that is too little."""
    if wanted <= present:
        return present
    return max(wanted, min(most, int(present * GROWTH)))


def _padded(contexts: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids [contexts, P] padded on the right, which causal attention never sees; index of each last token)."""
    rows = [torch.from_numpy(ids).long() for ids in contexts]
    last = torch.tensor([len(row) - 1 for row in rows])
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device), last.to(device)
