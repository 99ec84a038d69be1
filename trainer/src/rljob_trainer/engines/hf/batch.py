"""The sequences that engine hf is generating: one row each, the active rows first."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rljob_trainer.engines.hf.sampler import choose, uniforms
from rljob_trainer.engines.stop import StopStrings
from rljob_trainer.old_types import GenerationRequest, Sample, Sampling


class Batch:
    """Rows of sequences, S slots of which the first `active` are in use.

    requests: [active], the request of each row.
    token_ids, log_probs: [S, T] so far, T = sampling.max_tokens. counts: [S] tokens sampled.
    lengths: [S] prompt and sampled tokens. limits: [S] most tokens that may be sampled.
    """

    def __init__(self, slots: int, sampling: Sampling, end_ids: Tensor, max_model_len: int) -> None:
        device, tokens = end_ids.device, sampling.max_tokens
        self.slots, self.sampling, self.end_ids, self.max_model_len = slots, sampling, end_ids, max_model_len
        self.requests: list[GenerationRequest] = []
        self.token_ids = torch.zeros(slots, tokens, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(slots, tokens, device=device)
        self.uniforms = torch.zeros(slots, tokens, dtype=torch.float64, device=device)
        self.counts, self.lengths, self.limits = torch.zeros(3, slots, dtype=torch.int64, device=device)

    @property
    def active(self) -> int:
        return len(self.requests)

    def admit(self, requests: Sequence[GenerationRequest]) -> slice:
        """Give each request a row behind the active ones; returns those rows."""
        rows = slice(self.active, self.active + len(requests))
        self.requests.extend(requests)
        lengths = np.array([len(request.prompt_token_ids) for request in requests])
        noise = uniforms([request.seed for request in requests], self.sampling.max_tokens)
        self.uniforms[rows] = torch.from_numpy(noise)
        self.lengths[rows] = torch.from_numpy(lengths)
        self.limits[rows] = torch.from_numpy(np.minimum(self.sampling.max_tokens, self.max_model_len - lengths))
        self.counts[rows] = 0
        return rows

    def append(self, rows: slice, logits: Tensor) -> Tensor:
        """Sample one token for each of `rows` from logits [B, V]; returns the new ids [B]."""
        column = self.counts[rows, None]
        ids, log_probs = choose(logits, self.uniforms[rows].gather(1, column)[:, 0], self.sampling)
        self.token_ids[rows].scatter_(1, column, ids[:, None])
        self.log_probs[rows].scatter_(1, column, log_probs[:, None])
        self.counts[rows] += 1
        self.lengths[rows] += 1
        return ids

    def last_ids(self) -> Tensor:
        """[active, 1], the newest token of each row."""
        rows = slice(self.active)
        return self.token_ids[rows].gather(1, self.counts[rows, None] - 1)

    def ended(self, stops: StopStrings) -> Tensor:
        """[active] bool: rows whose newest token is an end-of-text token or completes a stop string."""
        ended = torch.isin(self.last_ids()[:, 0], self.end_ids)
        if stops.window:
            ended |= torch.tensor(stops.found(self._newest(stops.window)), device=ended.device)
        return ended

    def _newest(self, window: int) -> list[list[int]]:
        """The last `window` sampled ids of each active row, fewer where there are no more."""
        rows, counts = slice(self.active), self.counts[: self.active].tolist()
        columns = (self.counts[rows, None] - window + torch.arange(window, device=self.counts.device)).clamp_(min=0)
        newest = self.token_ids[rows].gather(1, columns).tolist()
        return [ids[max(0, window - count) :] for ids, count in zip(newest, counts, strict=True)]

    def samples(self, rows: Sequence[int], ended: Sequence[bool]) -> list[Sample]:
        """The finished responses of `rows`; ended[i] says whether rows[i] stopped by itself."""
        counts = self.counts[rows].tolist()
        longest = max(counts)
        ids = self.token_ids[rows, :longest].to(torch.int32).cpu().numpy()
        log_probs = self.log_probs[rows, :longest].cpu().numpy()
        requests = [self.requests[row] for row in rows]
        return [
            Sample(
                r.prompt_id, r.sample_index, ids[i, :n].copy(), log_probs[i, :n].copy(), "stop" if stop else "length"
            )
            for i, (r, n, stop) in enumerate(zip(requests, counts, ended, strict=True))
        ]

    def remove(self, rows: Sequence[int]) -> tuple[list[int], list[int]]:
        """Free `rows`; rows from the end move into the gaps. Returns (sources, targets) of those moves."""
        keep = self.active - len(rows)
        gone = set(rows)
        targets = [row for row in rows if row < keep]
        sources = [row for row in range(keep, self.active) if row not in gone]
        for state in (self.token_ids, self.log_probs, self.uniforms, self.counts, self.lengths, self.limits):
            state[targets] = state[sources]
        for source, target in zip(sources, targets, strict=True):
            self.requests[target] = self.requests[source]
        del self.requests[keep:]
        return sources, targets
