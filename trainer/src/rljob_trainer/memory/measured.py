"""A model's sizes from its configuration: measured on the meta device, where tensors have sizes and no data."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from rljob_api.resolve import ResolvedLora
from rljob_trainer.compute.dtypes import ComputeDtype
from rljob_trainer.errors import DataError, first_line
from rljob_trainer.lora.files import is_adapter
from rljob_trainer.lora.layers import adapt
from rljob_trainer.memory.model import ModelSize
from rljob_trainer.memory.sequences import KvSize
from rljob_trainer.rank.loading import bare_model
from rljob_trainer.rank.model_source import FIELD
from rljob_trainer.rank.sharding import COMPUTE_DTYPES, decoder_layers

_TOKENS = 64
"""Tokens of the forward pass whose saved tensors are counted: their sizes grow in proportion."""

_ATTENTION = "rljob_sizes"


def model_size(
    config: PreTrainedConfig, *, trust_remote_code: bool = False, lora: ResolvedLora | None = None,
    dtype: ComputeDtype = "bfloat16",
) -> ModelSize:  # fmt: skip
    """Measure the model of a configuration: takes seconds, and no memory.

    lora: with its rank and modules. dtype: of matrix products.
    Raises JobError if it lacks one of the adapter's modules; DataError for one without layers of attention, or that
    computes with the values of its tensors.
    """
    try:
        return _measured(config, lora, COMPUTE_DTYPES[dtype], trust_remote_code=trust_remote_code)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"the memory of {config.model_type} cannot be worked out without its weights ({first_line(error)}); start"
            " the job with a small actor.tokensPerMicroBatch and read the metric memory/update",
            field=FIELD,
        ) from error


def _measured(
    config: PreTrainedConfig, lora: ResolvedLora | None, dtype: torch.dtype, *, trust_remote_code: bool
) -> ModelSize:
    config = copy.deepcopy(config)
    config.pad_token_id = None  # some models look for it in their input
    with torch.device("meta"):
        model = bare_model(config, attn_implementation=_ATTENTION, trust_remote_code=trust_remote_code)
    parameters = sum(each.numel() for each in model.parameters())
    blocks = [sum(each.numel() for each in block.parameters()) for block in decoder_layers(model)]
    head = model.get_output_embeddings().weight
    if lora is not None:
        adapt(model, lora)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(is_adapter(name))
    narrow = _saved(model.to(torch.bfloat16))
    saved = narrow if dtype is torch.bfloat16 else _saved(model.to(dtype))
    per_layer = _TOKENS * len(blocks)
    return ModelSize(
        parameters=parameters,
        layers=len(blocks),
        layer=max(blocks),
        root=parameters - sum(blocks),
        largest=max(each.numel() for each in model.parameters()),
        vocabulary=head.shape[0],
        hidden=head.shape[1],
        saved=sum(each.nbytes for each in saved) // per_layer,
        compiled=_fused(narrow, len(blocks), frozen=lora is not None) * dtype.itemsize // 2,
        widest=_widest(saved),
        kv=KvSize.of(config.get_text_config(), len(blocks), dtype.itemsize),
        recomputes=model.supports_gradient_checkpointing,
        adapter=sum(each.numel() for name, each in model.named_parameters() if is_adapter(name)),
    )


def _fused(saved: Sequence[Tensor], layers: int, *, frozen: bool) -> int:
    """Bytes a token that torch.compile keeps of a block. saved: without it, in bfloat16. frozen: norms do not train.

    A norm then keeps its input instead of a copy in float32 and the normalised one, which a frozen norm never keeps;
    and the product of gate and activation function is computed again.
    """
    copies = [each for each in saved if each.dtype == torch.float32 and each.shape[-1] > 1]
    kept = sum(each.nbytes for each in saved) - sum(each.nbytes for each in copies)
    inputs = sum(each.nbytes for each in copies) // 2 if frozen else 0
    return (kept + inputs) // (_TOKENS * layers) - _widest(saved)


def _widest(saved: Sequence[Tensor]) -> int:
    """Bytes a token."""
    return max(each.nbytes for each in saved) // _TOKENS


def _saved(model: PreTrainedModel) -> list[Tensor]:
    """What autograd keeps of a forward pass of _TOKENS tokens, parameters left out, one tensor for each memory."""
    known = {each.untyped_storage()._cdata: None for each in model.parameters()}  # noqa: SLF001  the memory's identity
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage()._cdata  # noqa: SLF001
        if place not in known:
            kept.setdefault(place, tensor)
        return tensor

    base: Any = model.base_model if model.base_model is not model else model.get_submodule("model")
    tokens, positions = torch.zeros(1, _TOKENS, dtype=torch.long), torch.arange(_TOKENS)[None]
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        base(input_ids=tokens.to("meta"), position_ids=positions.to("meta"), use_cache=False)
    return list(kept.values())


class _Flash(torch.autograd.Function):
    """Keeps what the flash kernel keeps: queries, keys, values, output, log-sums."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(_ctx: Any, *_gradients: Tensor) -> tuple[None, None, None]:
        return None, None, None


def _attend(
    _module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: None, **_others: Any
) -> tuple[Tensor, None]:
    rows = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    out: Tensor = _Flash.apply(*rows)
    return out[None], None


AttentionInterface.register(_ATTENTION, _attend)
