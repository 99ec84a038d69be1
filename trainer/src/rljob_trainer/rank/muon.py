"""Muon for the matrices of the decoder's layers, AdamW for everything else.

A step of Muon needs whole matrices: every rank gathers one after the other, orthogonalizes it by torch's own iteration,
and keeps its rows. Jordan et al. 2024: https://kellerjordan.github.io/posts/muon/
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim._muon import DEFAULT_A, DEFAULT_B, DEFAULT_C, DEFAULT_NS_STEPS, EPS, _zeropower_via_newtonschulz

from rljob_trainer.rank.optimizer import ShardedAdamW

MOMENTUM = 0.95
"""torch.optim.Muon's default, with Nesterov's look-ahead."""

_RMS = 0.2
"""Size of an update's elements, about that of AdamW's, so that both take one learning rate and weight decay.
Liu et al. 2025, Muon is Scalable for LLM Training, section 2.2: https://arxiv.org/abs/2502.16982"""


class ShardedMuon(ShardedAdamW):
    """As torch.optim.Muon with adjust_lr_fn match_rms_adamw for `matrices`; the others as ShardedAdamW.

    matrices: ids of parameters of two dimensions. Their state is one momentum, and a step that stays 0.
    """

    def step_of(self, group: dict[str, Any], trained: list[nn.Parameter]) -> None:
        for each in trained:
            if id(each) in self.matrices:
                self._orthogonal(group, each)
        super().step_of(group, [each for each in trained if id(each) not in self.matrices])

    def _orthogonal(self, group: dict[str, Any], weight: nn.Parameter) -> None:
        own, momentum, gradient = _local(weight), _local(self._momentum_of(weight)), _local(weight.grad)
        taken = 1.0 if self.skip is None else (1.0 - self.skip).to(own.device)
        gradient = torch.nan_to_num(gradient)  # one that is not finite is skipped, and must not reach the momentum
        momentum.lerp_(gradient, (1 - MOMENTUM) * taken)
        whole = _whole(gradient.lerp(momentum, MOMENTUM), weight)
        made = _zeropower_via_newtonschulz(whole, (DEFAULT_A, DEFAULT_B, DEFAULT_C), DEFAULT_NS_STEPS, EPS)
        rate = float(group["lr"])
        own.mul_(1 - rate * float(group["weight_decay"]) * taken)
        own.add_(_rows(made, weight) * taken, alpha=-rate * _RMS * max(whole.shape) ** 0.5)

    def _momentum_of(self, weight: nn.Parameter) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=self.device)  # torch.optim.AdamW loads no other
            state["momentum_buffer"] = torch.zeros_like(weight)
        momentum: Tensor = state["momentum_buffer"]
        return momentum


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(rows: Tensor, weight: Tensor) -> Tensor:
    """The matrix of which this rank has these rows; collective."""
    if not isinstance(weight, DTensor):
        return rows
    mesh, placements = weight.device_mesh, weight.placements
    return DTensor.from_local(rows, mesh, placements, shape=weight.shape, stride=weight.stride()).full_tensor()


def _rows(whole: Tensor, weight: Tensor) -> Tensor:
    """This rank's rows of a matrix that every rank has."""
    if not isinstance(weight, DTensor):
        return whole
    return distribute_tensor(whole, weight.device_mesh, weight.placements, src_data_rank=None).to_local()
