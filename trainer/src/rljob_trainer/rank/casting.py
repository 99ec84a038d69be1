"""Mixed precision of one rank alone: what FSDP does there, without its copy of every layer's weights in every pass.

    outside a pass          the modules hold the float32 weights, which optimizer, checkpoints and syncs see
    a module computes       it holds copies in the compute dtype; all of them are written as a pass begins
    backward pass           a copy's gradient is added to the float32 gradient of its weight, and dropped
    the pass has ended      the copies' memory is free

A pass ends with its backward pass, or with the forward pass if that is without gradients. A layer that is computed
again in the backward pass takes the copies again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable


@dataclass(frozen=True, slots=True)
class _Copy:
    """of: the float32 weight. cast: it in the compute dtype, with memory only during a pass."""

    of: nn.Parameter
    cast: nn.Parameter


class CastWeights:
    """Makes `policy`, whose float32 parameters have their device already, compute in `dtype`.

    layers: the modules of the policy that are computed again, if any are. Each holds its copies while it computes, and
    the policy those of all its other modules. Floating inputs of both are cast as well, as FSDP does.
    """

    def __init__(self, policy: nn.Module, layers: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._copies: dict[nn.Parameter, _Copy] = {}
        self._ending = False
        inside = {module for layer in layers for module in layer.modules()}
        for unit in (*layers, policy):
            places = [
                (module, name, self._copy_of(parameter))
                for module in unit.modules()
                if unit is not policy or module not in inside
                for name, parameter in module.named_parameters(recurse=False)
                if parameter.is_floating_point() and parameter.dtype != dtype
            ]
            unit.register_forward_pre_hook(self._entering(places, begins=unit is policy), with_kwargs=True)
            unit.register_forward_hook(self._leaving(places, ends=unit is policy), always_call=True)

    def _copy_of(self, parameter: nn.Parameter) -> _Copy:
        """One for each parameter, however many modules share it."""
        if parameter not in self._copies:
            memory = torch.empty_like(parameter, dtype=self._dtype, requires_grad=False)
            copy = _Copy(parameter, nn.Parameter(memory, requires_grad=parameter.requires_grad))
            if parameter.requires_grad:
                copy.cast.register_post_accumulate_grad_hook(lambda _cast: self._accumulated(copy))
            self._copies[parameter] = copy
            memory.untyped_storage().resize_(0)
        return self._copies[parameter]

    def _entering(self, places: "_Places", *, begins: bool) -> Callable[..., tuple[Any, dict[str, Any]]]:
        def enter(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            if begins:
                self._write()
            for module, name, copy in places:
                module._parameters[name] = copy.cast  # noqa: SLF001  setattr would look through all of nn.Module
            return tuple(map(self._cast, args)), {name: self._cast(each) for name, each in kwargs.items()}

        return enter

    def _leaving(self, places: "_Places", *, ends: bool) -> Callable[..., None]:
        def leave(*_: Any) -> None:
            for module, name, copy in places:
                module._parameters[name] = copy.of  # noqa: SLF001
            if ends and not torch.is_grad_enabled():
                self._free()

        return leave

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != self._dtype:
            return value.to(self._dtype)
        return tuple(map(self._cast, value)) if type(value) is tuple else value

    @torch.no_grad()
    def _write(self) -> None:
        copies = list(self._copies.values())
        for copy in copies:
            copy.cast.untyped_storage().resize_(copy.cast.numel() * self._dtype.itemsize)
        if copies:
            torch._foreach_copy_([copy.cast for copy in copies], [copy.of for copy in copies])

    @torch.no_grad()
    def _accumulated(self, copy: _Copy) -> None:
        gradient, copy.cast.grad = copy.cast.grad, None
        assert gradient is not None
        if copy.of.grad is None:
            copy.of.grad = gradient.to(copy.of.dtype)
        else:
            copy.of.grad.add_(gradient)
        if not self._ending:
            self._ending = True
            Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001

    def _end(self) -> None:
        self._ending = False
        self._free()

    def _free(self) -> None:
        for copy in self._copies.values():
            copy.cast.untyped_storage().resize_(0)


_Places = list[tuple[nn.Module, str, _Copy]]
"""Parameters of modules, and the copies that take their places."""
