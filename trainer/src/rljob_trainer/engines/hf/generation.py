"""Continuous batching of engine hf.

    submit ──> queue ──admit──> rows of the batch ──decode step──> one token more for every active row
                 ^                                      │
                 └──── a finished row's slot is free ◄──┴──> its Completion is returned at once

Batch and KV cache are as large as what is unfinished asks for, grow with what comes, and go when nothing is left.
"""

from collections import deque
from collections.abc import Collection, Sequence
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
        self, model: Any, decoder: Decoder, settings: EngineSettings, end_ids: Tensor, stops: StopStrings
    ) -> None:
        self.model, self.decoder, self.settings, self.stops = model, decoder, settings, stops
        self.device = end_ids.device
        self.queue: deque[Row] = deque()
        self.batch = Batch(end_ids)
        self.cache = SlotCache(model.config.get_text_config().num_hidden_layers)
        self.columns = torch.empty(0, device=self.device)
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
        ids, last = _padded(contexts, self.device)
        cache = DynamicCache(config=self.model.config)
        needed, where = last.unique(return_inverse=True)
        logits = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=needed).logits
        context_of_row = torch.tensor(source, device=self.device)
        self.cache.admit(cache, self.batch.active, context_of_row)
        self.batch.append(self.batch.admit(rows), logits[context_of_row, where[context_of_row]])

    def _fit(self) -> None:
        """Make batch and cache large enough for what is there."""
        wanted = min(self.settings.max_num_seqs, self.unfinished)
        slots = _enough(self.batch.slots, wanted, self.settings.max_num_seqs)
        capacity = _enough(self.cache.capacity, self.capacity, self.settings.max_model_len)
        self.batch.fit(slots, _enough(self.batch.width, self.tokens, self.settings.max_model_len))
        self.cache.fit(slots, capacity)
        if len(self.columns) < capacity:
            self.columns = torch.arange(capacity, device=self.device)

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
        positions = self.batch.lengths[rows] - 1
        longest = int(positions.max()) + 1
        self.cache.expect(positions, longest)
        # Additive, because eager attention adds its mask and sdpa takes both kinds.
        hidden = self.columns[:longest] > positions[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype, device=self.device).masked_fill_(hidden, -torch.inf)
        logits = self.decoder.step(self.batch.last_ids()[:, 0], positions, mask[:, None, None], self.cache)
        self.batch.append(rows, logits)

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
