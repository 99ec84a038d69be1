"""The policy as a function from packed tokens to the log-probability of each token in the loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from rljob_trainer.losses.output_head import LogitTransform, score_logits, score_tokens
from rljob_trainer.rank.attention import PACKED_ATTENTION
from rljob_trainer.rank.packing import PackedBatch, pack
from rljob_trainer.types import Trajectory


class Policy(nn.Module):
    """A causal language model of transformers behind a forward pass that never builds all logits at once.

    It is the root module of FSDP: the output head is used inside this forward pass, while its weights are gathered.
    apart: whether each trajectory needs a row of its own (packable.py decides).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.transform = LogitTransform.of(model.config)
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

        Both are of the distribution at the batch's temperature. whole: of the logits that the model itself returns,
        without gradient.
        """
        if whole:
            logits = self.model(batch.input_ids, use_cache=False).logits.flatten(0, 1).index_select(0, batch.predict_at)
            return score_logits(logits, batch.targets, batch.temperature)
        packed: dict[str, Any] = {}  # a row alone has the positions that every architecture counts by itself
        if batch.layout is not None:
            packed = {"position_ids": batch.position_ids} | ({"layout": batch.layout} if self._takes_layout else {})
        hidden = (
            self._decoder(input_ids=batch.input_ids, use_cache=False, **packed)
            .last_hidden_state.flatten(0, 1)
            .index_select(0, batch.predict_at)
        )
        head = self.model.get_output_embeddings()
        return score_tokens(
            hidden, head.weight, getattr(head, "bias", None), batch.targets, batch.temperature, self.transform,
            entropy_gradient=entropy_gradient,
        )  # fmt: skip


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
