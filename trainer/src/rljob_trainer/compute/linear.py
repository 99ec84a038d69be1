"""Linear layers on a CPU: float32 products by oneDNN.

PyTorch multiplies float32 with MKL, which has half the speed of oneDNN on processors of other makers than Intel
(bench/linear.py). For other dtypes PyTorch uses oneDNN itself.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class CpuLinear(nn.Linear):
    """An nn.Linear that computes with `linear`."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  its name in nn.Linear
        return linear(input, self.weight, self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Replace each nn.Linear of the model by CpuLinear, in place. No effect on a GPU."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = CpuLinear


def plain_linear_layers(module: nn.Module) -> None:
    """Undo speed_up_linear_layers: torch.compile takes no such product of weights that change."""
    for part in module.modules():
        if type(part) is CpuLinear:
            part.__class__ = nn.Linear  # type: ignore[assignment]


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """states [..., K], weight [N, K], bias [N] -> [..., N]: torch.nn.functional.linear with its gradient."""
    if not _for_onednn(states, weight):
        return F.linear(states, weight, bias)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (states, weight, bias)):
        out: Tensor = _Linear.apply(states, weight, bias)
        return out
    return _product(states, weight, bias)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """left.T @ right: [T, N], [T, K] -> [N, K]; without gradient."""
    return _outer(left, right) if _for_onednn(left, right) else left.t() @ right


def _for_onednn(states: Tensor, weight: Tensor) -> bool:
    return (
        states.device.type == "cpu"
        and states.dtype == weight.dtype == torch.float32
        and states.numel() > 0
        and _AVAILABLE
        and not torch.is_autocast_enabled("cpu")
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        states, weight = ctx.saved_tensors
        (of_out,) = gradients
        of_states = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_states = _product(of_out, weight.t())
        rows = of_out.reshape(-1, of_out.shape[-1])
        if ctx.needs_input_grad[1]:
            of_weight = _outer(rows, states.reshape(-1, states.shape[-1]))
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_states, of_weight, of_bias


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """left.T @ right: [T, N], [T, K] -> [N, K]. oneDNN is faster with the narrower matrix first."""
    if left.shape[1] > right.shape[1]:
        return _product(right.t(), left.t()).t()
    return _product(left.t(), right.t())


def _product(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # torch.compile calls it too; no public function passes unpacked float32 matrices to oneDNN.
    out: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")  # noqa: SLF001
    return out
