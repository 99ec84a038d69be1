"""The model's part of one decode step: the newest token of each row in, logits of the next one out.

    make_decoder(model) ──> FusedDecoder     Llama, Mistral, Qwen2, Qwen3 without windows
                        ├─> PlainDecoder     transformers' own forward pass, for others that attend to cached keys
                        └─> None             states of another kind: each step reads the whole context

A small model's step is dispatch more than arithmetic. FusedDecoder does what transformers does with little more than
half of the operations: one product for queries, keys and values, one for gate and up, rotations from a table.
"""

from typing import Any, Protocol

import structlog
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from rljob_trainer.compute.linear import linear
from rljob_trainer.engines.hf.attention import GROUPED, attend, slot_mask
from rljob_trainer.engines.hf.slots import SlotCache

log = structlog.get_logger()

_FUSED = ("llama", "mistral", "qwen2", "qwen3")
_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Rotations that depend on a token's position alone, not on the length of its sequence."""


class Decoder(Protocol):
    def bind(self) -> None:
        """Before a weight update: the model is on its device."""

    def release(self) -> None:
        """Keep no memory of the device until the next `bind`: the model leaves it."""

    def step(self, ids: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        """Logits [B, V]. ids [B]; positions [B], where `cache` expects them."""


def make_decoder(model: Any) -> Decoder | None:
    """None for a model whose every step has to read the whole context."""
    config = model.config
    if not caches_keys(model):
        log.warning("engine_without_cache", model=type(model).__name__)
        return None
    known = config.model_type in _FUSED and type(model).__module__.startswith("transformers.models.")
    windows = any(DynamicCache(config=config).is_sliding)
    if known and not windows and config.rope_parameters["rope_type"] in _FIXED_ROTATIONS:
        return FusedDecoder(model)
    return PlainDecoder(model)


def caches_keys(model: Any) -> bool:
    """Whether all that a token needs of those before it are the keys and values of each layer.

    Its masks and its attention are transformers' own then, so that they fit a SlotCache.
    """
    if model._is_stateful or not model._supports_attention_backend or model.config._attn_implementation != GROUPED:  # noqa: SLF001
        return False
    kinds = DynamicCache(config=model.config).layers
    layers = model.config.get_text_config().num_hidden_layers
    return len(kinds) == layers and all(type(each) in (DynamicLayer, DynamicSlidingWindowLayer) for each in kinds)


class PlainDecoder:
    """transformers' forward pass."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def bind(self) -> None: ...

    def release(self) -> None: ...

    def step(self, ids: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        logits: Tensor = self._model(
            ids[:, None],
            position_ids=positions[:, None],
            past_key_values=cache,
            use_cache=True,
        ).logits
        return logits[:, -1]


class FusedDecoder:
    """A Llama-like model with as few operations as eager PyTorch allows."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers: list[_Layer] = []
        self._rotations: tuple[Tensor, Tensor] | None = None

    def bind(self) -> None:
        if not self._layers:
            self._layers = [_Layer(layer) for layer in self._model.model.layers]

    def release(self) -> None:
        self._layers, self._rotations = [], None

    def step(self, ids: Tensor, positions: Tensor, cache: SlotCache) -> Tensor:
        body = self._model.model
        mask = slot_mask(len(ids), 1, cache.longest, positions, dtype=self._model.dtype)
        hidden: Tensor = body.embed_tokens(ids)
        cos, sin = (table.index_select(0, positions)[:, None] for table in self._tables(cache.capacity, hidden))
        for layer, slot in zip(self._layers, cache.layers, strict=True):
            hidden = layer.step(hidden, cos, sin, mask, slot)
        logits: Tensor = self._model.lm_head(_normed(hidden, body.norm))
        return logits

    def _tables(self, capacity: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [positions, head size]; the sines with the signs of the half that they meet."""
        if self._rotations is None or len(self._rotations[0]) < capacity:
            positions = torch.arange(capacity, device=like.device)[None]
            cos, sin = self._model.model.rotary_emb(like, positions)
            half = sin.shape[-1] // 2
            self._rotations = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
        return self._rotations


class _Layer:
    """One layer, whose projections of the same input are one matrix. Its modules' parameters become views of it."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._input_norm, self._mlp_norm = layer.input_layernorm, layer.post_attention_layernorm
        self._qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self._out, self._down, self._activate = attention.o_proj, mlp.down_proj, mlp.act_fn
        self._head_norms = (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None
        self._size, self._scale = attention.head_dim, attention.scaling
        self._heads = attention.q_proj.out_features // self._size
        self._kv_heads = attention.k_proj.out_features // self._size

    def step(self, hidden: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, slot: Any) -> Tensor:
        """hidden [B, hidden size]; cos, sin [B, 1, head size]."""
        rows = len(hidden)
        states = linear(_normed(hidden, self._input_norm), *self._qkv).view(rows, -1, self._size)
        query_key, value = states.split([self._heads + self._kv_heads, self._kv_heads], dim=1)
        if self._head_norms is not None:
            query, key = query_key.split([self._heads, self._kv_heads], dim=1)
            query_key = torch.cat([_normed(query, self._head_norms[0]), _normed(key, self._head_norms[1])], dim=1)
        rotated = torch.addcmul(query_key * cos, query_key.roll(self._size // 2, dims=-1), sin)
        query, key = rotated.split([self._heads, self._kv_heads], dim=1)
        keys, values = slot.update(key[:, :, None], value[:, :, None])
        grouped = query.reshape(rows, self._kv_heads, -1, self._size)
        mixed = attend(grouped, keys, values, mask, self._scale)
        hidden = _added(hidden, mixed.reshape(rows, -1), self._out)
        gate, up = linear(_normed(hidden, self._mlp_norm), *self._gate_up).chunk(2, dim=-1)
        return _added(hidden, self._activate(gate) * up, self._down)


def _normed(states: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(states, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _added(residual: Tensor, states: Tensor, layer: Any) -> Tensor:
    if layer.bias is None and states.is_cuda:
        return torch.addmm(residual, states, layer.weight.t())
    return linear(states, layer.weight, layer.bias).add_(residual)


def _joined(*linears: Any) -> tuple[Tensor, Tensor | None]:
    """One weight and one bias for all; the modules keep their parameters, as views."""
    weight = _join([linear.weight for linear in linears])
    biases = [linear.bias for linear in linears]
    return weight, None if biases[0] is None else _join(biases)


@torch.no_grad()
def _join(parameters: list[nn.Parameter]) -> Tensor:
    joined = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, joined.split([len(each) for each in parameters]), strict=True):
        parameter.data = part
    return joined
