"""Attention of one new token over cached keys, without repeating the keys for grouped queries.

transformers' sdpa copies keys and values once for each query head when a mask is given, at every step; here the heads
that share a key head become rows of one small query matrix. That took 40 % of engine hf's time on a CPU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

GROUPED = "rljob_grouped"
"""The name to give as attn_implementation."""


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
    if Q > 1 or kv_heads == H:
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


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
