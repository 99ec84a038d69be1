"""AdamW over the shards of this rank, in one fused kernel for each slice of them.

torch's own fused AdamW computes the same. This one lets the device decide whether a step happens, so that the host does
not have to wait for the gradient's norm, and takes the moments from wherever they lie:

    fsdp.offload   weights, gradients   moments   the step computes
    none           GPU                  GPU       there, all at once
    optimizer      GPU                  host      on the GPU, slice by slice
    parameters     host                 GPU       on the GPU, slice by slice
    all            host                 host      on the host
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_SLICE = 1 << 28
"""Elements that are copied to the GPU at a time: 1 GiB of each of the tensors that lie in host memory."""

_MOMENTS = ("exp_avg", "exp_avg_sq")


class ShardedAdamW(torch.optim.AdamW):
    """AdamW whose state has the names and shapes of torch's. Loshchilov and Hutter: https://arxiv.org/abs/1711.05101

    device: where steps compute, unless everything is in host memory.
    moments_on_host: whether the moments of parameters on a GPU lie in host memory.
    skip: None, or a float32 scalar: where it is 1 a step changes nothing.
    matrices_alone: whether weight decay leaves out parameters of one dimension: biases and the weights of norms. They
        are in the same group, so that a checkpoint fits both.
    matrices: ids of parameters that a subclass updates, with a state of their own.
    """

    matrices: frozenset[int] = frozenset()

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, betas: tuple[float, float], weight_decay: float,
        device: torch.device, moments_on_host: bool = False, matrices_alone: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(parameters, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)
        self.device, self.moments_on_host, self.matrices_alone = device, moments_on_host, matrices_alone
        self.skip: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """closure: not supported."""
        assert closure is None
        for group in self.param_groups:
            self.step_of(group, [each for each in group["params"] if each.grad is not None])

    def step_of(self, group: dict[str, Any], trained: list[nn.Parameter]) -> None:
        """One step of these parameters of a group."""
        plain = [each for each in trained if self.matrices_alone and each.dim() < 2]
        decayed = [each for each in trained if not (self.matrices_alone and each.dim() < 2)]
        for parameters in _slices(decayed):
            self._step(group, parameters, float(group["weight_decay"]))
        for parameters in _slices(plain):
            self._step(group, parameters, 0.0)

    @torch.no_grad()
    def keep_settings(self) -> None:
        """After a state was loaded: the settings are this optimizer's, and its moments lie where they belong."""
        for group in self.param_groups:
            group |= {name: self.defaults[name] for name in ("betas", "weight_decay")}
            for parameter in group["params"]:
                if parameter in self.state and id(parameter) not in self.matrices:
                    local = _local(parameter)
                    self._state_of(
                        parameter, local.device if self.moments_on_host and not local.is_cuda else self.device
                    )

    def _step(self, group: dict[str, Any], parameters: list[nn.Parameter], weight_decay: float) -> None:
        weights = [_local(each) for each in parameters]
        device = weights[0].device if self.moments_on_host and not weights[0].is_cuda else self.device
        states = [self._state_of(each, device) for each in parameters]
        steps = [state["step"] for state in states]
        moments = [_local(state[name]) for name in _MOMENTS for state in states]
        tensors = [*weights, *moments, *(_local(each.grad) for each in parameters if each.grad is not None)]
        there = [each.to(device, non_blocking=True) for each in tensors]
        skip = None if self.skip is None else self.skip.to(device)
        count = len(weights)
        weight, moment, square, gradient = (there[first : first + count] for first in range(0, 4 * count, count))
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            weight, gradient, moment, square, [], steps, lr=float(group["lr"]), beta1=group["betas"][0],
            beta2=group["betas"][1], weight_decay=weight_decay, eps=group["eps"], amsgrad=False,
            maximize=False, found_inf=skip,
        )  # fmt: skip
        if skip is not None:
            torch._foreach_sub_(steps, [skip] * len(steps))
        for home, computed in zip([*weights, *moments], there, strict=False):
            if home is not computed:
                home.copy_(computed, non_blocking=True)

    def _state_of(self, parameter: nn.Parameter, device: torch.device) -> dict[str, Any]:
        """The parameter's state, each tensor where it belongs; loading a state puts all of it beside the parameter."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            state |= {name: torch.zeros_like(parameter) for name in _MOMENTS}
        state["step"] = state["step"].to(device)
        home = torch.device("cpu") if self.moments_on_host else self.device
        for name in _MOMENTS:
            if _local(state[name]).device.type != home.type:
                state[name] = _moved(state[name], home)
        return state


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on that device, pinned on the host. A DTensor keeps its mesh, as those of FSDP's CPUOffloadPolicy do."""
    local = _local(tensor)
    copy = torch.empty_like(local, device=device, pin_memory=device.type == "cpu").copy_(local)
    return DTensor(copy, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else copy  # noqa: SLF001


def _slices(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Neighbours of at most _SLICE elements together, or one larger one."""
    part: list[nn.Parameter] = []
    elements = 0
    for parameter in parameters:
        count = _local(parameter).numel()
        if part and elements + count > _SLICE:
            yield part
            part, elements = [], 0
        part.append(parameter)
        elements += count
    if part:
        yield part


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
