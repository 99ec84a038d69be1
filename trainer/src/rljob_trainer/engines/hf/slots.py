"""A KV cache of slots: each row holds one sequence from its first column on, at its own length.

row 0   p p p r r r r . . .        p prompt, r response, . free
row 1   p p p p p r . . . .        column = position, so a row's content depends on no other row
row 2   p r r r r r r r . .
        [0 .. longest)             what one decode step reads, masked by each row's length
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer


class SlotLayer(DynamicLayer):
    """Keys and values of one layer: [slots, KV heads, capacity, head size]."""

    def __init__(self, cache: "SlotCache") -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = (self._allocate(states) for states in (key_states, value_states))
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def _allocate(self, like: Tensor) -> Tensor:
        # Zeros, not empty: columns beyond a row's length are masked, but NaN times 0 would still be NaN.
        return like.new_zeros(self.cache.slots, like.shape[1], self.cache.capacity, like.shape[3])

    def grow(self) -> None:
        """Move what is there into tensors of the cache's present size."""
        if self.is_initialized:
            old, slots, columns = (self.keys, self.values), self.keys.shape[0], self.keys.shape[2]
            self.keys, self.values = (self._allocate(states) for states in old)
            self.keys[:slots, :, :columns], self.values[:slots, :, :columns] = old

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store one new token for each of the first B rows; return all that they may attend to."""
        rows, columns, longest = self.cache.rows, self.cache.columns, self.cache.longest
        self.keys[rows, :, columns] = key_states[:, :, 0]
        self.values[rows, :, columns] = value_states[:, :, 0]
        return self.keys[: len(rows), :, :longest], self.values[: len(rows), :, :longest]

    def get_seq_length(self, *_args: Any) -> int:
        return self.cache.longest

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002  the protocol's
        return self.cache.longest, 0

    def admit(self, keys: Tensor, values: Tensor, row: int, source: Tensor) -> None:
        """Copy prompts [prompts, KV heads, P, head size] into rows from `row` on; row i gets prompt source[i]."""
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        rows, columns = slice(row, row + len(source)), slice(keys.shape[2])
        self.keys[rows, :, columns] = keys[source]
        self.values[rows, :, columns] = values[source]


class SlotCache(Cache):
    """The cache that the model sees while it decodes.

    slots: rows. capacity: columns, the longest sequence that fits.
    """

    layers: list[SlotLayer]

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])
        self.clear()

    def clear(self) -> None:
        """Keep no memory."""
        self.slots = self.capacity = self.longest = 0
        self.rows = self.columns = torch.empty(0, dtype=torch.int64)
        self.layers = [SlotLayer(self) for _ in self.layers]

    def fit(self, slots: int, capacity: int) -> None:
        """Make room for that many rows and columns, no fewer than there are."""
        if slots > self.slots or capacity > self.capacity:
            self.slots, self.capacity = slots, capacity
            for layer in self.layers:
                layer.grow()

    def expect(self, columns: Tensor, longest: int) -> None:
        """The next decode step writes column columns[i] of row i and reads the first `longest` columns."""
        self.rows, self.columns, self.longest = torch.arange(len(columns), device=columns.device), columns, longest

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:  # type: ignore[override]  # noqa: ARG002  for slot_mask
        return self.columns

    def admit(self, prompts: DynamicCache, row: int, source: Tensor) -> None:
        for slot, prompt in zip(self.layers, prompts.layers, strict=True):
            slot.admit(prompt.keys, prompt.values, row, source)

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole rows, so that the active rows stay the first ones.

        All columns: a row that was admitted since the last decode step may be longer than what that step read.
        """
        for layer in (layer for layer in self.layers if layer.is_initialized):
            layer.keys[targets] = layer.keys[sources]
            layer.values[targets] = layer.values[sources]
