"""The policy as a function from packed tokens to the log-probability of each token in the loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from rljob_trainer.losses.entropy import entropy_from_logits
from rljob_trainer.rank.attention import PACKED_ATTENTION
from rljob_trainer.rank.packing import PackedBatch, pack
from rljob_trainer.types import Trajectory

_LOGITS_PER_CHUNK = 1 << 26
"""Elements of the largest logits tensor: 256 MiB in float32. A whole batch of a 152k vocabulary needs gigabytes."""

_LOGITS_KEPT = 1 << 24
"""Elements up to which logits are kept for the backward pass, 64 MiB in float32; above, they are computed again."""


class Policy(nn.Module):
    """A causal language model of transformers behind a forward pass that never builds all logits at once.

    It is the root module of FSDP: the output head is used inside this forward pass, while its weights are gathered.
    apart: whether each trajectory needs a row of its own (packable.py decides).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.apart = False

    def pack(self, trajectories: Sequence[Trajectory], device: torch.device) -> PackedBatch:
        """The micro-batch that `forward` takes. device: the one that computes; offloaded parameters lie on another."""
        return pack(trajectories, device, share=self.shares_prompts(device), apart=self.apart)

    def shares_prompts(self, device: torch.device) -> bool:
        """Whether it takes a pack whose trajectories share their prompts. The GPU's kernel wants each one whole."""
        return self._takes_layout and not self.apart and device.type == "cpu"

    @property
    def _decoder(self) -> nn.Module:
        """All but the output head: what checkpoints prefix may be another part."""
        base: nn.Module = self.model.base_model
        return self.model.get_submodule("model") if base is self.model else base

    @property
    def _takes_layout(self) -> bool:
        return bool(self.model.config._attn_implementation == PACKED_ATTENTION)  # noqa: SLF001  no public name

    def forward(self, batch: PackedBatch, entropy_gradient: bool, whole: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [sum of R] of the targets and their distributions, float32, in nats.

        Both are of the distribution at the batch's temperature. whole: of the logits that the model itself returns.
        """
        if whole:
            logits = self.model(batch.input_ids, use_cache=False).logits.flatten(0, 1).index_select(0, batch.predict_at)
            return _score(nn.Identity(), logits, batch.targets, batch.temperature, entropy_gradient)
        packed: dict[str, Any] = {}  # a row alone has the positions that every architecture counts by itself
        if batch.layout is not None:
            packed = {"position_ids": batch.position_ids} | ({"layout": batch.layout} if self._takes_layout else {})
        hidden = (
            self._decoder(input_ids=batch.input_ids, use_cache=False, **packed)
            .last_hidden_state.flatten(0, 1)
            .index_select(0, batch.predict_at)
        )
        head, targets, temperature = self.model.get_output_embeddings(), batch.targets, batch.temperature
        rows = max(128, _LOGITS_PER_CHUNK // head.weight.shape[0])
        if targets.numel() * head.weight.shape[0] <= _LOGITS_KEPT:
            return _score(head, hidden, targets, temperature, entropy_gradient)
        parts = [
            checkpoint(_score, head, part, wanted, scale, entropy_gradient, use_reentrant=False)
            for part, wanted, scale in zip(
                hidden.split(rows), targets.split(rows), _split(temperature, rows, targets.numel()), strict=True
            )
        ]
        log_probs, entropies = zip(*parts, strict=True)
        return torch.cat(log_probs), torch.cat(entropies)


def _split(temperature: float | Tensor, rows: int, tokens: int) -> Sequence[float | Tensor]:
    return temperature.split(rows) if isinstance(temperature, Tensor) else [temperature] * -(-tokens // rows)


def _score(
    head: nn.Module, hidden: Tensor, targets: Tensor, temperature: float | Tensor, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    logits = head(hidden).float().div_(temperature[:, None] if isinstance(temperature, Tensor) else temperature)
    log_probs = logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropies = entropy_from_logits(logits)
    return log_probs, entropies


def score(
    policy: nn.Module, batch: PackedBatch, entropy_gradient: bool = False, *, whole: bool = False
) -> tuple[Tensor, Tensor]:
    """`Policy.forward` of one micro-batch, through FSDP's hooks if the policy is sharded."""
    log_probs, entropies = policy(batch, entropy_gradient, whole)
    return log_probs, entropies


@torch.no_grad()
def score_only(policy: nn.Module, batch: PackedBatch, *, whole: bool = False) -> Tensor:
    """Log-probabilities [sum of R] without gradient. whole: as Policy.forward's."""
    log_probs, _ = score(policy, batch, whole=whole)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # FSDP keeps the root, and layers without reshardAfterForward, gathered for a backward pass that never
            # comes. What stays gathered would hide all later updates.
            module.reshard()
    return log_probs
