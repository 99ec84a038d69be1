"""Causal attention inside packed sequences, as an attention implementation of transformers.

On a GPU: the variable-length flash kernel that ships with PyTorch, no padding at all. On a CPU, and in float32, which
that kernel does not know: sequences are laid side by side, padded on the right to the longest, and attended to
causally. A valid query never looks right, so it never sees padding and no mask is needed; padded queries are dropped.
Only attention's own products pay for padding there, and micro-batches hold sequences of similar lengths.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import varlen
from transformers import AttentionInterface

from rljob_trainer.errors import JobError

PACKED_ATTENTION = "rljob_packed"
FIELD = "spec.model.attention"

_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_NOT_COMPUTED = ("softcap", "s_aux", "position_bias")
"""What some architectures ask of attention: a bound of its logits, sinks, biases."""

_KERNEL_NAMES_GQA = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


def packed_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: None,
    *,
    boundaries: Tensor | None = None,
    max_length: int = 0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one packed row, with the signature that transformers calls.

    query: [1, heads, T, d]; key, value: [1, kv heads, T, d]; boundaries: [n + 1]. Returns [1, T, heads, d].
    Raises JobError for an architecture that needs more than that.
    """
    unknown = [name for name in _NOT_COMPUTED if others.get(name) is not None]
    if unknown or boundaries is None:
        missing = f"has attention with {unknown[0]}" if unknown else "does not tell its layers about packing"
        raise JobError(f"this architecture {missing}, which auto cannot do: set it to sdpa or eager", field=FIELD)
    window = sliding_window if sliding_window is not None and sliding_window < max_length else None
    if query.is_cuda and query.dtype in _FLASH_DTYPES:
        return _flash(query, key, value, boundaries, max_length, scaling, window), None
    return _side_by_side(query, key, value, boundaries, max_length, scaling, window), None


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Tensor,
    max_length: int,
    scale: float | None,
    window: int | None,
) -> Tensor:
    flat = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value)]
    options: dict[str, Any] = {"scale": scale, "window_size": (-1 if window is None else window - 1, 0)}
    if _KERNEL_NAMES_GQA:
        options["enable_gqa"] = True
    bounds = (boundaries, boundaries, max_length, max_length)
    out = varlen.varlen_attn(flat[0], flat[1], flat[2], *bounds, **options)
    assert isinstance(out, Tensor)  # a tuple only where its log-sum-exp is asked for
    return out[None]


def _side_by_side(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Tensor,
    max_length: int,
    scale: float | None,
    window: int | None,
) -> Tensor:
    count = len(boundaries) - 1
    columns = torch.arange(max_length, device=boundaries.device)[None]
    read = kept = None  # sequences of one length need no padding
    if count * max_length != query.shape[2]:
        starts, lengths = boundaries[:-1, None], boundaries.diff()[:, None]
        valid = columns < lengths
        read, kept = torch.where(valid, starts + columns, 0).flatten(), valid.flatten().nonzero()[:, 0]

    def lay_out(tensor: Tensor) -> Tensor:
        heads, size = tensor.shape[1], tensor.shape[3]
        rows = tensor[0] if read is None else tensor[0].index_select(1, read)
        return rows.view(heads, count, max_length, size).transpose(0, 1)

    mask = None
    if window is not None:
        distance = columns.T - columns
        mask = (distance >= 0) & (distance < window)
    out = F.scaled_dot_product_attention(
        lay_out(query), lay_out(key), lay_out(value),
        attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    flat = out.transpose(1, 2).flatten(0, 1)
    return (flat if kept is None else flat.index_select(0, kept))[None]


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
