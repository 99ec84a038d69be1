"""Models as functions of packed tokens: the policy's log-probability, and the critic's value, of each in the loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional
from transformers import PreTrainedModel

from rljob_trainer.losses.output_head import (
    LogitTransform,
    likeliest_tokens,
    score_candidates,
    score_logits,
    score_tokens,
)
from rljob_trainer.rank.attention import PACKED_ATTENTION
from rljob_trainer.rank.packing import PackedBatch, pack
from rljob_trainer.types import Trajectory


class PackedModel(nn.Module):
    """A causal language model of transformers that reads packs.

    It is the root module of FSDP: the output head is used inside its forward pass, while its weights are gathered.
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

    def hidden_states(self, batch: PackedBatch) -> Tensor:
        """[sum of R, H], of the last layer, in the rows that predict a token in the loss."""
        packed: dict[str, Any] = {}  # a row alone has the positions that every architecture counts by itself
        if batch.layout is not None:
            packed = {"position_ids": batch.position_ids} | ({"layout": batch.layout} if self._takes_layout else {})
        states: Tensor = self._decoder(input_ids=batch.input_ids, use_cache=False, **packed).last_hidden_state
        return states.flatten(0, 1).index_select(0, batch.predict_at)


class Policy(PackedModel):
    """The policy, or a reference: a forward pass that never builds all logits at once."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self.transform = LogitTransform.of(model.config)

    def forward(
        self, batch: PackedBatch, entropy_gradient: bool, whole: bool = False, likeliest: int = 0
    ) -> tuple[Tensor, ...]:
        """Log-probabilities and entropies [sum of R] of the targets and their distributions, float32, in nats; with
        candidates also the log-probabilities of these, [sum of R, K].

        All are of the distribution at the batch's temperature. whole: of the logits that the model itself returns,
        without gradient. likeliest: above 0, the ids and log-probabilities of so many likeliest tokens instead.
        """
        if whole:
            logits = self.model(batch.input_ids, use_cache=False).logits.flatten(0, 1).index_select(0, batch.predict_at)
            return score_logits(logits, batch.targets, batch.temperature)
        head, states = self.model.get_output_embeddings(), self.hidden_states(batch)
        bias = getattr(head, "bias", None)
        if likeliest:
            return likeliest_tokens(states, head.weight, bias, likeliest, batch.temperature, self.transform)
        if batch.candidates is None:
            return score_tokens(
                states, head.weight, bias, batch.targets, batch.temperature, self.transform,
                entropy_gradient=entropy_gradient,
            )  # fmt: skip
        return score_candidates(
            states, head.weight, bias, batch.targets, batch.candidates, batch.temperature, self.transform,
            entropy_gradient=entropy_gradient,
        )  # fmt: skip


class Critic(PackedModel):
    """A language model whose output head is one of values. It begins as 0, as in the code of Ziegler et al. 2019:
    https://arxiv.org/abs/1909.08593
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        width = model.get_output_embeddings().weight.shape[1]
        self.head = nn.utils.skip_init(nn.Linear, width, 1)  # draws nothing from torch's generator
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        model.config.tie_word_embeddings = False
        model.set_output_embeddings(nn.Identity())

    def forward(self, batch: PackedBatch) -> Tensor:
        """Values [sum of R] of what comes before each token in the loss, float32."""
        weight, bias = self.head.weight.float(), self.head.bias.float()
        return functional.linear(self.hidden_states(batch).float(), weight, bias)[:, 0]


def score(
    policy: nn.Module, batch: PackedBatch, entropy_gradient: bool = False, *, whole: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of one micro-batch, through FSDP's hooks if the policy is sharded."""
    log_probs, entropies, *_ = policy(batch, entropy_gradient, whole)
    return log_probs, entropies


def score_with_candidates(
    policy: nn.Module, batch: PackedBatch, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """As `score`, and the log-probabilities of the batch's candidates; None without any."""
    log_probs, entropies, *of_candidates = policy(batch, entropy_gradient)
    return log_probs, entropies, of_candidates[0] if of_candidates else None


@torch.no_grad()
def likeliest_only(policy: nn.Module, batch: PackedBatch, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities of the `count` likeliest tokens in place of each target, [sum of R, count]."""
    ids, log_probs = policy(batch, False, False, count)
    _reshard(policy)
    return ids, log_probs


@torch.no_grad()
def score_only(policy: nn.Module, batch: PackedBatch, *, whole: bool = False) -> Tensor:
    """Log-probabilities [sum of R] without gradient. whole: as Policy.forward's."""
    log_probs, _ = score(policy, batch, whole=whole)
    _reshard(policy)
    return log_probs


@torch.no_grad()
def value_only(critic: Critic, batch: PackedBatch) -> Tensor:
    """Values [sum of R] without gradient."""
    values: Tensor = critic(batch)
    _reshard(critic)
    return values


def _reshard(model: nn.Module) -> None:
    """FSDP keeps the root, and layers without reshardAfterForward, gathered for a backward pass that never comes. What
    stays gathered would hide all later updates.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
