"""Whether trajectories of one row see each other, found by comparison: a pack against each trajectory alone.

Windows, rotations and states differ between architectures, and transformers gains new ones with every release. What
agrees with transformers' own forward pass of a single sequence is packed; anything else gets a row for each trajectory.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import structlog
import torch
import torch.distributed as dist
from torch import Tensor

from rljob_trainer.compute.attention_choice import use_transformers_attention
from rljob_trainer.errors import JobError
from rljob_trainer.rank.attention import PACKED_ATTENTION, CannotPack
from rljob_trainer.rank.forward import PackedModel, Policy, score_only
from rljob_trainer.rank.packing import pack
from rljob_trainer.types import Trajectory, supervised

log = structlog.get_logger()

_DIFFERENT = {
    (torch.float32, "cpu"): 1e-4,
    (torch.float32, "cuda"): 0.02,
    (torch.bfloat16, "cpu"): 0.2,
    (torch.bfloat16, "cuda"): 0.2,
}
"""Nats, mean over the last tokens of a sequence, by the type of matrix products and the device: above it, rounding is
no reason.

A GPU may multiply float32 in TF32, whose rounding is that of 10 bits. In bfloat16 two shapes of SmolLM2's input differ
by more than 0.05 on a CPU.
"""

_COMPARED = 8
"""Tokens at the end of each sequence that are compared."""

_BEYOND = 32
"""Tokens beyond the end of a window."""


def choose_rows(policy: Policy, longest: int, device: torch.device, dtype: torch.dtype) -> None:
    """Set `policy.apart`; collective. longest: tokens of the longest trajectory. dtype: of matrix products.

    Raises JobError if a token's probability depends on more than the tokens before it: on those behind it, as in an
    encoder, or on random numbers; no ratio of probabilities means anything then. And if the model does more with its
    head's logits than Policy, whose probabilities would not be the model's.
    """
    sequences, allowed = _sequences(policy.model.config, longest), _DIFFERENT[dtype, device.type]
    attention = policy.model.config._attn_implementation  # noqa: SLF001  no public name
    packed = _packed(policy, sequences, device)
    policy.apart = True
    if attention == PACKED_ATTENTION:
        use_transformers_attention(policy.model)
    alone = torch.cat([score_only(policy, pack([each], device, apart=True)) for each in sequences])
    padded = score_only(policy, pack(sequences, device, apart=True))
    if not _gap(alone, padded, device) <= allowed:
        raise JobError(
            "a token's probability depends on more than the tokens before it (on later ones, or on random numbers):"
            " choose a decoder-only model",
            field="spec.model.path",
        )
    whole = score_only(policy, pack(sequences[1:], device, apart=True), whole=True)
    if not _gap(alone[_COMPARED:], whole, device) <= allowed:
        raise JobError(
            "the model changes the logits of its output head (it scales, bounds or masks them), which the trainer does"
            " not compute: choose another model",
            field="spec.model.path",
        )
    gap = _gap(alone, packed, device)
    policy.apart = not gap <= allowed
    if policy.apart:
        log.warning("packing_off", model=type(policy.model).__name__, difference=gap)
    elif attention == PACKED_ATTENTION:
        policy.model.set_attn_implementation(attention)


def rows_as(model: PackedModel, other: PackedModel) -> None:
    """Lay rows out as `other` does, a model of the same architecture; of another one, each trajectory apart."""
    model.apart = other.apart or _architecture(model) != _architecture(other)
    if model.apart and model.model.config._attn_implementation == PACKED_ATTENTION:  # noqa: SLF001
        use_transformers_attention(model.model)


def _architecture(model: PackedModel) -> tuple[Any, ...]:
    """What decides whether trajectories of one row see each other."""
    config = model.model.config
    return type(model.model), _reach(config), getattr(config, "layer_types", None)


def _sequences(config: Any, longest: int) -> list[Trajectory]:
    """Two random ones: the first passes what the configuration counts tokens up to, if a trajectory may."""
    draw = np.random.Generator(np.random.PCG64(0)).integers
    sizes = (min(max(longest, 2 * _COMPARED), _reach(config) + _BEYOND), 2 * _COMPARED)
    tokens = [draw(0, config.get_text_config().vocab_size, size, np.int32) for size in sizes]
    return [supervised(ids, [slice(len(ids) - _COMPARED, len(ids))]) for ids in tokens]


def _reach(config: Any) -> int:
    """The longest window, chunk or original context of the configuration; at least 2 blocks of a kernel."""
    counts = [
        value
        for name, value in config.get_text_config().to_dict().items()
        if isinstance(value, int) and any(part in name for part in ("window", "chunk", "original_max", "block_size"))
    ]
    return max([2 * _BEYOND, *counts])


def _packed(policy: Policy, sequences: Sequence[Trajectory], device: torch.device) -> Tensor | None:
    """The log-probabilities of the second one behind the first, and of the first behind the second; None if none."""
    if any(each.dim() == 4 and each.shape[-1] == each.shape[-2] > 1 for each in policy.model.buffers()):
        return None  # a table of the causal mask, as GPT-Neo's: a row cannot be longer than a sequence
    try:
        behind = [score_only(policy, pack(order, device)) for order in (sequences, sequences[::-1])]
    except (CannotPack, TypeError):  # TypeError: a forward pass that takes no such argument
        return None
    return torch.cat([each[_COMPARED:] for each in behind[::-1]])


def _gap(one: Tensor, other: Tensor | None, device: torch.device) -> float:
    """The largest mean difference of a sequence, over all ranks, which must all decide alike."""
    each = torch.tensor([torch.inf]) if other is None else (one - other).abs().view(-1, _COMPARED).mean(1).cpu()
    gap = each.max().to(device)
    if dist.is_initialized():
        dist.all_reduce(gap, dist.ReduceOp.MAX)
    return float(gap)
