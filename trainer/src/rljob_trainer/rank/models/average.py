"""An exponential moving average of the policy's weights (actor.emaDecay), in float32 and sharded as they are.

A validation exchanges it with the policy: what is sent to engines, and scored by the probe, is then the average.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rljob_trainer.rank.forward import Policy
from rljob_trainer.rank.models.role import ModelRole


class _Tensors(nn.Module):
    """The tensors under the policy's names, as a checkpoint holds them."""

    def __init__(self, named: dict[str, Tensor]) -> None:
        super().__init__()
        self._named = named

    def state_dict(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return dict(self._named)


class Average:
    """The average of `policy` from now on. decay: what remains of it in a step, in (0, 1).

    Polyak and Juditsky 1992, Acceleration of Stochastic Approximation by Averaging: https://doi.org/10.1137/0330046
    """

    def __init__(self, policy: ModelRole[Policy], decay: float) -> None:
        self._decay = decay
        self._trained = list(policy.network.parameters())
        self._average = [each.detach().clone() for each in self._trained]
        own = {id(each): average for each, average in zip(self._trained, self._average, strict=True)}
        every = dict(policy.network.named_parameters(remove_duplicate=False))  # tied weights have two names
        named = {name: own[id(every[name])] if name in every else each for name, each in _state(policy).items()}
        holder = _Tensors(named)
        self.role = ModelRole("ema", holder, holder)

    @torch.no_grad()
    def follow(self) -> None:
        """After a step: average = decay average + (1 - decay) policy."""
        torch._foreach_lerp_(list(map(_local, self._average)), list(map(_local, self._trained)), 1 - self._decay)

    @torch.no_grad()
    def exchange(self) -> None:
        """Give the policy the average's weights and keep the policy's; once more to give them back."""
        for weight, average in zip(self._trained, self._average, strict=True):
            kept = weight.detach().clone()
            weight.copy_(average)
            average.copy_(kept)


def _state(policy: ModelRole[Policy]) -> dict[str, Tensor]:
    return policy.network.state_dict()


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
