"""Linear layers on a CPU against PyTorch's in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rljob_trainer.compute.linear import CpuLinear, linear, speed_up_linear_layers

SHAPES = [((7, 5), 3), ((2, 7, 5), 9), ((1, 300, 64), 192), ((300, 192), 64), ((1, 1), 1), ((64,), 8), ((0, 5), 3)]


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def assert_alike(found: Tensor | None, wanted: Tensor | None) -> None:
    assert found is not None
    assert wanted is not None
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("shape", "outputs"), SHAPES)
def test_it_is_pytorchs_forward_and_backward(shape: tuple[int, ...], outputs: int, biased: bool):
    given = [drawn(*shape), drawn(outputs, shape[-1]), *([drawn(outputs)] if biased else [])]
    exact = [each.detach().double().requires_grad_() for each in given]
    found, wanted = linear(*given), F.linear(*exact)
    assert_alike(found, wanted)
    direction = drawn(*wanted.shape).detach()
    found.backward(direction)
    wanted.backward(direction.double())
    for ours, theirs in zip(given, exact, strict=True):
        assert_alike(ours.grad, theirs.grad)


@pytest.mark.parametrize("wanting", range(3))
def test_only_what_is_trained_gets_a_gradient(wanting: int):
    given = [drawn(6, 4), drawn(5, 4), drawn(5)]
    for number, each in enumerate(given):
        each.requires_grad_(number == wanting)
    linear(*given).sum().backward()  # whose gradient is one number, seen as a matrix
    assert [each.grad is not None for each in given] == [number == wanting for number in range(3)]
    exact = [each.detach().double().requires_grad_() for each in given]
    F.linear(*exact).sum().backward()
    assert_alike(given[wanting].grad, exact[wanting].grad)


@pytest.mark.parametrize("states", [drawn(4, 6).t(), drawn(6, 8)[:, ::2], drawn(6, 1).expand(6, 4)])
def test_states_may_lie_in_memory_as_they_like(states: Tensor):
    given = [states.detach().requires_grad_(), drawn(4, 5).detach().t().requires_grad_()]
    exact = [each.detach().double().requires_grad_() for each in given]
    found, wanted = linear(*given), F.linear(*exact)
    assert_alike(found, wanted)
    direction = drawn(5, 6).detach().t()
    found.backward(direction)
    wanted.backward(direction.double())
    for ours, theirs in zip(given, exact, strict=True):
        assert_alike(ours.grad, theirs.grad)


def test_other_types_and_autocast_are_pytorchs_own():
    states, weight = drawn(6, 4).bfloat16(), drawn(5, 4).bfloat16()
    assert torch.equal(linear(states, weight), F.linear(states, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(drawn(6, 4), drawn(5, 4)).dtype == torch.bfloat16


def test_it_replaces_linear_layers_and_nothing_else():
    class Own(nn.Linear):
        """Somebody's own forward pass is not ours to change."""

    model = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 6, bias=False), nn.LayerNorm(6)), Own(6, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    speed_up_linear_layers(model)
    assert [type(each) for each in model.modules() if isinstance(each, nn.Linear)] == [CpuLinear, CpuLinear, Own]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert repr(model[0]) == "CpuLinear(in_features=4, out_features=5, bias=True)"
