"""A model of a rank, and what it is for."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from rljob_api import ResolvedSpec
from rljob_trainer.rank.muon import ShardedMuon
from rljob_trainer.rank.optimizer import ShardedAdamW

M_co = TypeVar("M_co", bound=nn.Module, covariant=True)

State = dict[str, Any]
"""{model, optimizer}: tensors by name, this rank's own shards and not copies; no optimizer if there is none."""


@dataclass(frozen=True, slots=True)
class ModelRole(Generic[M_co]):
    """One model.

    name: of the role, and of its part of a checkpoint.
    module: what forward passes call; sharded.
    network: the module, or the part of it, whose parameter names checkpoints and engines use.
    optimizer: None for a model that is not trained.
    saved: whether checkpoints hold it.
    whole: whether checkpoints hold its frozen parameters too, although it has an optimizer.
    """

    name: str
    module: M_co
    network: nn.Module
    optimizer: ShardedAdamW | None = None
    saved: bool = True
    whole: bool = False

    def state(self) -> State:
        """What a checkpoint holds of it."""
        if self.optimizer is None:
            return {"model": self.network.state_dict()}
        model, optimizer = get_state_dict(
            self.network, self.optimizer, options=StateDictOptions(ignore_frozen_params=self._adapted)
        )
        if self._adapted:
            model = {name: model[name] for name, each in self.network.named_parameters() if each.requires_grad}
        return {"model": model, "optimizer": optimizer}

    def restore(self, state: State) -> None:
        """Take over a state of `state()` whose tensors were read in place; without optimizer that was all."""
        if self.optimizer is not None:
            model, optimizer = state["model"], state["optimizer"]
            set_state_dict(
                self.network, self.optimizer, model_state_dict=model, optim_state_dict=optimizer,
                options=StateDictOptions(strict=not self._adapted),
            )  # fmt: skip
            self.optimizer.keep_settings()

    @property
    def _adapted(self) -> bool:
        """Whether checkpoints hold what is trained alone."""
        return not self.whole and any(not each.requires_grad for each in self.network.parameters())


def adamw(
    module: nn.Module, spec: ResolvedSpec, device: torch.device, weight_decay: float | None = None,
    matrices: Set[int] = frozenset(),
) -> ShardedAdamW:  # fmt: skip
    """The optimizer of spec.actor, fresh. device: of the rank. weight_decay: actor's by default.

    matrices: ids of the parameters that Muon takes.
    """
    actor = spec.actor
    kind = ShardedMuon if matrices else ShardedAdamW
    made = kind(
        [each for each in module.parameters() if each.requires_grad],
        lr=actor.learning_rate,
        betas=(actor.beta1, actor.beta2),
        weight_decay=actor.weight_decay if weight_decay is None else weight_decay,
        device=device,
        matrices_alone=actor.weight_decay_on == "matrices",
        moments_on_host=actor.fsdp.offload in {"optimizer", "all"},
    )
    if isinstance(made, ShardedMuon):
        made.matrices = frozenset(matrices)
    return made
