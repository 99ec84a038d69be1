"""Causal attention inside packed sequences, as an attention implementation of transformers.

On a GPU: the variable-length flash kernel that ships with PyTorch, no padding at all. On a CPU, and in float32, which
that kernel does not know: sequences are laid side by side, padded on the right to the longest, and attended to
causally. A valid query never looks right, so it never sees padding and no mask is needed; padded queries are dropped.
Only attention's own products pay for padding there, and micro-batches hold sequences of similar lengths. Rows of a
shared prompt are laid out for each of its sequences; what the prompt itself attends to is kept once.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import varlen
from transformers import AttentionInterface

from rljob_trainer.rank.packing import Layout

PACKED_ATTENTION = "rljob_packed"

_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_NOT_COMPUTED = ("softcap", "s_aux", "position_bias")
"""What some architectures ask of attention: a bound of its logits, sinks, biases."""

_SHORT = 48
"""Tokens of the longest sequence up to which, on a CPU, two products and a softmax are faster than PyTorch's kernel:
half of the time, forward and backward, for 128 sequences of 26 tokens."""

_KERNEL_NAMES_GQA = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters


class CannotPack(Exception):
    """The architecture needs attention that this file does not compute. Its trajectories get a row each."""


def packed_attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: None,
    *,
    layout: Layout | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of one packed row, with the signature that transformers calls.

    query: [1, heads, T, d]; key: [1, kv heads, T, d]; value: [1, kv heads, T, w]. Returns [1, T, heads, w].
    Raises CannotPack for an architecture that needs more than that.
    """
    unknown = [name for name in _NOT_COMPUTED if others.get(name) is not None]
    if unknown or layout is None:
        raise CannotPack(f"attention with {unknown[0]}" if unknown else "layers that do not learn the layout of a pack")
    window = sliding_window if sliding_window is not None and sliding_window < layout.max_length else None
    if query.is_cuda and query.dtype in _FLASH_DTYPES:
        return _flash(query, key, value, layout, scaling, window), None
    return _side_by_side(query, key, value, layout, scaling, window), None


def _flash(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None, window: int | None
) -> Tensor:
    narrower = query.shape[-1] - value.shape[-1]  # the kernel wants one width
    padded = F.pad(value, (0, narrower)) if narrower else value
    flat = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, padded)]
    options: dict[str, Any] = {"scale": scale, "window_size": (-1 if window is None else window - 1, 0)}
    if _KERNEL_NAMES_GQA:
        options["enable_gqa"] = True
    assert layout.boundaries is not None, "sequences that share prompts"
    bounds = (layout.boundaries, layout.boundaries, layout.max_length, layout.max_length)
    out = varlen.varlen_attn(flat[0], flat[1], flat[2], *bounds, **options)
    assert isinstance(out, Tensor)  # a tuple only if its log-sum-exp is requested
    return out[None, ..., : value.shape[-1]]


def _side_by_side(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None, window: int | None
) -> Tensor:
    read, kept = (
        (layout.read, layout.kept)
        if layout.boundaries is None
        else _padded(layout.boundaries, layout.max_length, query.shape[2])
    )

    if window is None and layout.max_length <= _SHORT and query.device.type == "cpu" and query.dtype == torch.float32:
        return _of_short(query, key, value, layout.max_length, read, kept, scale)

    def lay_out(tensor: Tensor) -> Tensor:
        rows = _chosen(tensor[0].transpose(0, 1), read)
        return rows.view(-1, layout.max_length, *rows.shape[1:]).transpose(1, 2)

    mask = None
    if window is not None:
        columns = torch.arange(layout.max_length, device=query.device)[None]
        distance = columns.T - columns
        mask = (distance >= 0) & (distance < window)
    out = F.scaled_dot_product_attention(
        lay_out(query), lay_out(key), lay_out(value),
        attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return _chosen(out.transpose(1, 2).flatten(0, 1), kept)[None]


def _of_short(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    length: int,
    read: Tensor | None,
    kept: Tensor | None,
    scale: float | None,
) -> Tensor:
    """Causal attention by two products and a softmax, with nothing copied but the rows that are laid out.

    They are laid out [sequence, kv head, token], and a query's row has all heads that share the key head, so they are
    one product.
    """
    heads, tokens, size = query.shape[1:]
    shared = key.shape[1]
    if read is None:
        read = torch.arange(tokens, device=query.device)
    head = torch.arange(shared, device=query.device)
    places = (read.view(-1, 1, length) * shared + head[:, None]).flatten()

    def lay_out(tensor: Tensor) -> Tensor:
        rows = tensor[0].transpose(0, 1).reshape(tokens * shared, -1)
        return F.embedding(places, rows).view(len(places) // length, -1, tensor.shape[-1])

    future = torch.full((length, length), -torch.inf, device=query.device).triu_(1)
    weights = torch.baddbmm(
        future.repeat_interleave(heads // shared, 0), lay_out(query), lay_out(key).transpose(1, 2),
        alpha=size**-0.5 if scale is None else scale,
    )  # fmt: skip
    mixed = (weights.softmax(-1) @ lay_out(value)).view(len(places), -1)
    if kept is None:
        kept = read
    sequence, column = kept // length, kept % length
    back = (sequence[:, None] * shared + head) * length + column[:, None]
    return F.embedding(back, mixed).view(1, tokens, heads, -1)


def _padded(boundaries: Tensor, max_length: int, tokens: int) -> tuple[Tensor | None, Tensor | None]:
    """read and kept of sequences that share nothing; None for those of one length, which need no padding."""
    starts, lengths = boundaries[:-1, None], boundaries.diff()[:, None]
    if len(starts) * max_length == tokens:
        return None, None
    columns = torch.arange(max_length, device=boundaries.device)[None]
    valid = columns < lengths
    return torch.where(valid, starts + columns, 0).flatten(), valid.flatten().nonzero()[:, 0]


def _chosen(rows: Tensor, index: Tensor | None) -> Tensor:
    """rows[index] of rows [T, heads, d]; all of them without an index.

    As an embedding, whose gradient a CPU adds up row by row in one pass; index_select's takes a pass for each row. In
    float32, for a shared prompt's rows have as many gradients as there are responses.
    """
    if index is None:
        return rows
    chosen = F.embedding(index, rows.reshape(len(rows), -1).float())
    return chosen.view(-1, *rows.shape[1:]).to(rows.dtype)


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
