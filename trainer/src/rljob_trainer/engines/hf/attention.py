"""Attention of engine hf: over cached keys, without repeating the keys for grouped queries.

transformers' sdpa copies keys and values once for each query head when a mask is given, at every step; here the heads
that share a key head become rows of one small query matrix. That took 40 % of engine hf's time on a CPU.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

GROUPED = "rljob_grouped"
"""The name to give as attn_implementation."""

_OF_ITS_OWN = ("s_aux", "softcap", "position_bias")
"""Arguments of architectures whose attention is no scaled dot product alone: sinks, a bound of the logits, biases."""


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [B, H, Q, D], key and value [B, KV heads, L, D]; returns [B, Q, H, D], as transformers wants it."""
    B, H, Q, _ = query.shape
    kv_heads = key.shape[1]
    if any(kwargs.get(name) is not None for name in _OF_ITS_OWN):
        own = sys.modules[type(module).__module__].eager_attention_forward
        mask = _additive(attention_mask, query, key)
        return own(module, query, key, value, mask, scaling=scaling, **({"dropout": 0.0} | kwargs))[0], None
    by_head = attention_mask is not None and attention_mask.shape[1] > 1  # of Doge, for example
    if Q > 1 or kv_heads == H or by_head:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    grouped = query.reshape(B, kv_heads, H // kv_heads, -1)
    return attend(grouped, key, value, attention_mask, scaling).reshape(B, 1, H, -1), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """scaled_dot_product_attention of few query rows, [B, KV heads, rows, D]. mask: as there.

    On a CPU two products and a softmax: PyTorch's kernel for one works through blocks that so few rows leave empty, and
    takes five times as long for 128 sequences of 20 tokens; from some hundred tokens on both take the same. In
    float32, for in shorter types the weights would be rounded in between.
    """
    additive = mask is None or mask.is_floating_point()
    if query.device.type != "cpu" or query.dtype != torch.float32 or not additive:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    weights = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-1, -2)
    return (weights if mask is None else weights.add_(mask)).softmax(-1) @ value


def _additive(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """The mask as eager attention adds it; None is a causal one."""
    if mask is not None and mask.is_floating_point():
        return mask
    if mask is None:
        mask = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, torch.finfo(query.dtype).min)


def slot_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    mask_function: Callable[..., Tensor] = causal_mask_function,
    dtype: torch.dtype = torch.float32,
    **others: Any,
) -> Tensor | None:
    """What transformers calls for the mask of a kind of layers, whatever it is: a window, a chunk, all before.

    q_offset: in a decode step over a SlotCache the position of each row's token, [B]; the mask is additive then.
    """
    if not isinstance(q_offset, Tensor):
        return sdpa_mask(batch_size, q_length, kv_length, q_offset, mask_function=mask_function, dtype=dtype, **others)
    device = q_offset.device
    rows, columns = torch.arange(batch_size, device=device), torch.arange(kv_length, device=device)
    seen = mask_function(rows[:, None, None, None], 0, q_offset[:, None, None, None], columns)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, slot_mask)
