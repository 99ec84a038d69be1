"""Entropy: by hand, its gradient against finite differences, TRL's function, and what it keeps in memory."""

import math

import pytest
import torch
from torch import Tensor

from rljob_trainer.losses import entropy as module
from rljob_trainer.losses.entropy import entropy_from_logits

INF = math.inf


def test_entropies_by_hand():
    # Uniform over 4: log 4. Certain: 0. Odds 3:1, that is 3/4 and 1/4: log 4 - 3/4 log 3 = 0.562335.
    logits = torch.tensor([[5.0, 5, 5, 5], [1e4, 0, 0, 0], [math.log(3), 0, -INF, -INF]])
    assert entropy_from_logits(logits).tolist() == pytest.approx([math.log(4), 0, 0.562335], abs=1e-6)


def test_the_gradient_agrees_with_finite_differences(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)  # five rows in three parts
    logits = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(entropy_from_logits, logits)


def test_impossible_tokens_have_no_gradient():
    logits = torch.tensor([[1.0, 0.0, -INF]], requires_grad=True)
    entropy_from_logits(logits).sum().backward()
    without = torch.tensor([[1.0, 0.0]], requires_grad=True)
    entropy_from_logits(without).sum().backward()
    assert logits.grad is not None
    assert without.grad is not None
    assert logits.grad[0, 2] == 0
    torch.testing.assert_close(logits.grad[:, :2], without.grad)


def test_half_precision_logits_are_summed_in_float32():
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    entropy = entropy_from_logits(logits)
    assert entropy.dtype == torch.float32
    exact = torch.distributions.Categorical(logits=logits.double()).entropy()
    torch.testing.assert_close(entropy.double(), exact, rtol=1e-5, atol=0)


def test_only_the_logits_and_the_entropies_are_kept_for_the_backward_pass():
    logits = torch.randn(600, 50, requires_grad=True)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        entropy_from_logits(logits)
    others = [tensor for tensor in kept if tensor.data_ptr() != logits.data_ptr()]
    assert [tensor.shape for tensor in others] == [(600,)]


def test_no_tokens_have_no_entropies():
    assert entropy_from_logits(torch.empty(0, 7)).shape == (0,)
