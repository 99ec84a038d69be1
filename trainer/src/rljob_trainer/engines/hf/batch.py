"""The samples that engine hf is generating: one row each, the active rows first."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rljob_trainer.engines.engine import Completion, Request
from rljob_trainer.engines.hf.sampler import choose, uniforms
from rljob_trainer.engines.stop import StopStrings
from rljob_trainer.types import FinishReason, Floats, Ids, Sampling


@dataclass(slots=True)
class Row:
    """One sample of a request on its way.

    kind: what it shares with samples whose tokens are chosen alike.
    limit: most tokens that it may get.
    ids, log_probs, versions: [K], what it had when it was last taken out of a batch by an update or a sleep.
    """

    request: Request
    sample: int
    kind: tuple[object, ...]
    limit: int
    ids: Ids = field(default_factory=lambda: np.empty(0, np.int32))
    log_probs: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    versions: Ids = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def context(self) -> Ids:
        """[P + K], what the model reads before the next token."""
        return np.concatenate([self.request.token_ids, self.ids]) if len(self.ids) else self.request.token_ids

    def add(self, ids: Ids, log_probs: Floats, version: int) -> None:
        """ids, log_probs: [K + new], all tokens so far; the new ones were sampled by `version`."""
        versions = np.full(len(ids), version, np.int32)
        versions[: len(self.versions)] = self.versions
        self.ids, self.log_probs, self.versions = ids, log_probs, versions

    def completion(self, reason: FinishReason) -> Completion:
        return Completion(self.request.id, self.sample, self.ids, self.log_probs, self.versions, reason)


class Batch:
    """Rows of samples, S slots of which the first `active` are in use.

    rows: [active]. token_ids, log_probs: [S, T] so far. counts: [S] tokens sampled.
    lengths: [S] prompt and sampled tokens. limits: [S] most tokens that may be sampled, at most T.
    """

    def __init__(self, end_ids: Tensor) -> None:
        device = end_ids.device
        self.end_ids = end_ids
        self.rows: list[Row] = []
        self.token_ids = torch.zeros(0, 0, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(0, 0, device=device)
        self.uniforms = torch.zeros(0, 0, dtype=torch.float64, device=device)
        self.counts, self.lengths, self.limits = torch.zeros(3, 0, dtype=torch.int64, device=device)
        self._kinds: Counter[tuple[object, ...]] = Counter()
        self._alike: list[tuple[Sampling, list[int] | None]] = []

    @property
    def active(self) -> int:
        return len(self.rows)

    @property
    def slots(self) -> int:
        return len(self.counts)

    @property
    def width(self) -> int:
        return self.token_ids.shape[1]

    def fit(self, slots: int, tokens: int) -> None:
        """Make room for that many rows of that many sampled tokens, no fewer than there are."""
        if slots <= self.slots and tokens <= self.width:
            return
        for name in ("token_ids", "log_probs", "uniforms"):
            setattr(self, name, _grown(getattr(self, name), slots, tokens))
        for name in ("counts", "lengths", "limits"):
            setattr(self, name, _grown(getattr(self, name), slots))

    def admit(self, rows: Sequence[Row]) -> slice:
        """Put the rows behind the active ones; returns where they are."""
        where = slice(self.active, self.active + len(rows))
        self.rows.extend(rows)
        counts = np.array([len(row.ids) for row in rows])
        limits = np.array([row.limit for row in rows])
        noise = uniforms([row.request.seeds[row.sample] for row in rows], int(limits.max()))
        self.uniforms[where, : noise.shape[1]] = torch.from_numpy(noise)
        self.lengths[where] = torch.from_numpy(counts + [len(row.request.token_ids) for row in rows])
        self.limits[where], self.counts[where] = torch.from_numpy(limits), torch.from_numpy(counts)
        for index, row in enumerate(rows, where.start):
            if count := len(row.ids):
                self.token_ids[index, :count] = torch.from_numpy(row.ids)
                self.log_probs[index, :count] = torch.from_numpy(row.log_probs)
        self._kinds.update(row.kind for row in rows)
        self._regroup()
        return where

    def _regroup(self) -> None:
        """Note which rows are sampled alike; None stands for all of them, as a rule."""
        if len(self._kinds) == 1:
            self._alike = [(self.rows[0].request.sampling, None)]
            return
        found: dict[tuple[object, ...], list[int]] = {}
        for index, row in enumerate(self.rows):
            found.setdefault(row.kind, []).append(index)
        self._alike = [(self.rows[where[0]].request.sampling, where) for where in found.values()]

    def append(self, where: slice, logits: Tensor) -> None:
        """Sample one token for each row of `where` from logits [B, V]; those are the newest rows, or all."""
        column = self.counts[where, None]
        ids, log_probs = self._choose(where.start or 0, logits, self.uniforms[where].gather(1, column)[:, 0])
        self.token_ids[where].scatter_(1, column, ids[:, None])
        self.log_probs[where].scatter_(1, column, log_probs[:, None])
        self.counts[where] += 1
        self.lengths[where] += 1

    def _choose(self, first: int, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """logits [B, V], noise [B]: of the rows from `first` on."""
        if len(self._kinds) == 1:
            return choose(logits, noise, self._alike[0][0])
        ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        log_probs = torch.empty(len(logits), device=logits.device)
        for sampling, rows in self._alike:
            if own := [row - first for row in rows or () if row >= first]:
                ids[own], log_probs[own] = choose(logits[own], noise[own], sampling)
        return ids, log_probs

    def last_ids(self) -> Tensor:
        """[active, 1], the newest token of each row."""
        rows = slice(self.active)
        return self.token_ids[rows].gather(1, self.counts[rows, None] - 1)

    def ended(self, stops: StopStrings) -> Tensor:
        """[active] bool: rows whose newest token is an end-of-text token or completes a stop string."""
        ended = torch.isin(self.last_ids()[:, 0], self.end_ids)
        for sampling, rows in self._alike:
            if sampling.stop:
                where = range(self.active) if rows is None else rows
                found = stops.found(self._newest(list(where), stops.window(sampling.stop)), sampling.stop)
                ended[where] |= torch.tensor(found, device=ended.device)
        return ended

    def _newest(self, where: list[int], window: int) -> list[list[int]]:
        """The last `window` sampled ids of these rows, fewer if there are no more."""
        ends = self.counts[where]
        columns = (ends[:, None] - window + torch.arange(window, device=ends.device)).clamp_(min=0)
        newest = self.token_ids[where].gather(1, columns).tolist()
        return [ids[max(0, window - count) :] for ids, count in zip(newest, ends.tolist(), strict=True)]

    def contexts(self) -> list[Ids]:
        """What the model reads before the next token of each row."""
        counts, ids = self.counts[: self.active].tolist(), self.token_ids[: self.active].to(torch.int32).cpu().numpy()
        rows = zip(self.rows, ids, counts, strict=True)
        return [np.concatenate([row.request.token_ids, own[:count]]) for row, own, count in rows]

    def read(self, where: Sequence[int], version: int) -> list[Row]:
        """The rows with the tokens that they have so far, of which those of this batch are by `version`."""
        counts = self.counts[where].tolist()
        longest = max(counts, default=0)
        ids = self.token_ids[where, :longest].to(torch.int32).cpu().numpy()
        log_probs = self.log_probs[where, :longest].cpu().numpy()
        rows = [self.rows[index] for index in where]
        for i, (row, n) in enumerate(zip(rows, counts, strict=True)):
            row.add(ids[i, :n].copy(), log_probs[i, :n].copy(), version)
        return rows

    def remove(self, where: Collection[int]) -> tuple[list[int], list[int]]:
        """Free these rows; rows from the end move into the gaps. Returns (sources, targets) of those moves."""
        keep = self.active - len(where)
        gone = set(where)
        self._kinds -= Counter(self.rows[index].kind for index in where)
        targets = [index for index in where if index < keep]
        sources = [index for index in range(keep, self.active) if index not in gone]
        for state in (self.token_ids, self.log_probs, self.uniforms, self.counts, self.lengths, self.limits):
            state[targets] = state[sources]
        for source, target in zip(sources, targets, strict=True):
            self.rows[target] = self.rows[source]
        del self.rows[keep:]
        self._regroup()
        return sources, targets


def _grown(state: Tensor, *shape: int) -> Tensor:
    grown = state.new_zeros(shape)
    grown[tuple(slice(size) for size in state.shape)] = state
    return grown
