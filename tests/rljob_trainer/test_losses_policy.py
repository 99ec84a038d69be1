"""Policy losses against numbers worked out by hand; test_losses_against_trl.py compares them with TRL's."""

from collections.abc import Sequence
from typing import get_args

import pytest
import torch

from rljob_api.v1alpha1.algorithm import Loss
from rljob_trainer.losses.policy import LOSSES, LossTerms, PolicyBatch
from tests.rljob_trainer.checkpoint_support import make_spec

EVERY_LOSS: list[Loss] = list(LOSSES)


def evaluate(
    name: Loss, ratios: Sequence[float], advantages: Sequence[float], **fields: object
) -> tuple[LossTerms, list[float]]:
    """The loss at these probability ratios, and its gradient by log_probs."""
    log_probs = torch.tensor(ratios, dtype=torch.float64).log().requires_grad_()
    old = torch.zeros(len(ratios), dtype=torch.float64)
    tokens = PolicyBatch(log_probs, torch.tensor(advantages, dtype=torch.float64), old)
    terms = LOSSES[name](tokens, make_spec(algorithm=fields).algorithm)
    terms.per_token.sum().backward()
    assert log_probs.grad is not None
    return terms, log_probs.grad.tolist()


def test_every_loss_of_the_api_is_registered():
    assert set(LOSSES) == set(get_args(Loss))


def test_clip_takes_the_smaller_promise():
    # Range 0.8 to 1.2. Per token -min(r A, clip(r) A), and -r A as its gradient where r A is the smaller:
    #   r 1.1 A  2: -min(2.2, 2.2);  inside
    #   r 1.5 A  2: -min(3.0, 2.4);  clipped above
    #   r 0.5 A  2: -min(1.0, 1.6);  below, but the token is good: pulled back up
    #   r 0.5 A -1: -min(-0.5, -0.8); clipped below
    #   r 1.5 A -1: -min(-1.5, -1.2); above, but the token is bad: pulled back down
    terms, gradient = evaluate("clip", [1.1, 1.5, 0.5, 0.5, 1.5], [2, 2, 2, -1, -1], clipRatio=0.2)
    assert terms.per_token.tolist() == pytest.approx([-2.2, -2.4, -1.0, 0.8, 1.5])
    assert terms.clipped.tolist() == [False, True, False, True, False]
    assert gradient == pytest.approx([-2.2, 0, -1.0, 0, 1.5])


def test_decoupled_clip_has_a_range_for_each_side():
    # Range 0.9 to 1.5, so that 1.4 is inside and 0.85 outside.
    terms, gradient = evaluate("decoupled_clip", [1.4, 1.6, 0.85], [1, 1, -1], clipRatioLow=0.1, clipRatioHigh=0.5)
    assert terms.per_token.tolist() == pytest.approx([-1.4, -1.5, 0.9])
    assert terms.clipped.tolist() == [False, True, True]
    assert gradient == pytest.approx([-1.4, 0, 0])


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    # Range 0.8 to 1.2, bound 3: for A < 0 the loss is at most -3 A; good tokens are as in clip.
    terms, gradient = evaluate("dual_clip", [2.5, 5.0, 0.5, 5.0], [-2, -2, -2, 2], clipRatio=0.2, clipRatioC=3)
    assert terms.per_token.tolist() == pytest.approx([5.0, 6.0, 1.6, -2.4])
    assert terms.clipped.tolist() == [False, True, True, True]
    assert gradient == pytest.approx([5.0, 0, 0, 0])


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_on_policy_the_gradient_is_that_of_reinforce(name: Loss):
    terms, gradient = evaluate(name, [1, 1, 1], [2, -3, 0])
    assert terms.per_token.tolist() == [-2, 3, 0]
    assert gradient == [-2, 3, 0]
    assert not terms.clipped.any()


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_a_token_has_no_gradient_exactly_where_it_is_clipped(name: Loss):
    generator = torch.Generator().manual_seed(0)
    ratios = torch.exp(torch.randn(400, generator=generator)).tolist()
    terms, gradient = evaluate(name, ratios, torch.randn(400, generator=generator).tolist())
    assert 50 < int(terms.clipped.sum()) < 350
    assert [value == 0 for value in gradient] == terms.clipped.tolist()


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_float32_stays_finite(name: Loss, log_ratio: float, advantage: float):
    log_probs = torch.tensor([log_ratio], requires_grad=True)
    tokens = PolicyBatch(log_probs, torch.tensor([advantage]), torch.zeros(1))
    per_token = LOSSES[name](tokens, make_spec().algorithm).per_token
    per_token.sum().backward()
    assert per_token.isfinite().all()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [0.0]
