"""KL estimates by hand and in exact expectation, their gradients, and the controllers of the coefficient."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from rljob_api.resolve import ResolvedKl
from rljob_api.v1alpha1.algorithm import KlEstimator
from rljob_trainer.errors import JobError
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.kl_controller import KlController


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [  # log ratios d = 0.5 and -0.5
        ("k1", [0.5, -0.5]),
        ("k2", [0.125, 0.125]),
        ("k3", [math.exp(-0.5) - 1 + 0.5, math.exp(0.5) - 1 - 0.5]),  # 0.106531, 0.148721
    ],
)
def test_estimates_by_hand(estimator: KlEstimator, expected: list[float]):
    estimates = kl_estimate(estimator, torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.5]))
    assert estimates.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_clipped_estimate_keeps_its_bound_and_loses_its_gradient():
    log_probs = torch.tensor([-1.0, -9.0, -9.0], requires_grad=True)
    cases: list[tuple[KlEstimator, list[float]]] = [("k1", [0.5, -4.0, 4.0]), ("k3", [0.106531, 4.0, 4.0])]
    for estimator, expected in cases:
        estimates = kl_estimate(estimator, log_probs, torch.tensor([-1.5, -1.0, -19.0]), clip=4.0)
        assert estimates.tolist() == pytest.approx(expected, rel=1e-5)
        (gradient,) = torch.autograd.grad(estimates.sum(), log_probs)
        assert (gradient != 0).tolist() == [True, False, False]


def distributions() -> tuple[Tensor, Tensor]:
    """Logits of a policy, with gradient, and log-probabilities of a reference, over five tokens."""
    logits = torch.tensor([0.3, -1.2, 0.8, 0.0, -0.4], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.5, 0.4, 1.1, -0.3, 0.2], dtype=torch.float64).log_softmax(-1)
    return logits, reference


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of log-probabilities, summed over all tokens."""
    return (p.exp() * (p - q)).sum()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator: KlEstimator):
    logits, reference = distributions()
    policy = logits.log_softmax(-1)
    expectation = (policy.exp() * kl_estimate(estimator, policy, reference)).sum()
    assert expectation.item() == pytest.approx(divergence(policy, reference).item())


def expected_loss_gradient(estimator: KlEstimator) -> Tensor:
    """What the estimator in the loss does on average: tokens come from the policy, but nothing flows through that."""
    logits, reference = distributions()
    policy = logits.log_softmax(-1)
    (policy.detach().exp() * kl_estimate(estimator, policy, reference)).sum().backward()
    assert logits.grad is not None
    return logits.grad


def test_k1_in_the_loss_has_no_gradient_on_average():
    torch.testing.assert_close(expected_loss_gradient("k1"), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)


def test_k2_in_the_loss_has_the_gradient_of_the_divergence_from_the_reference():
    logits, reference = distributions()
    (exact,) = torch.autograd.grad(divergence(logits.log_softmax(-1), reference), logits)
    torch.testing.assert_close(expected_loss_gradient("k2"), exact)


def test_k3_in_the_loss_has_the_gradient_of_the_divergence_the_other_way_round():
    logits, reference = distributions()
    (exact,) = torch.autograd.grad(divergence(reference, logits.log_softmax(-1)), logits)
    torch.testing.assert_close(expected_loss_gradient("k3"), exact)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("difference", [200.0, -200.0])
def test_a_difference_beyond_float32_stays_finite(estimator: KlEstimator, difference: float):
    log_probs = torch.tensor([difference], requires_grad=True)
    estimate = kl_estimate(estimator, log_probs, torch.zeros(1))
    estimate.sum().backward()
    assert estimate.isfinite().all()
    assert log_probs.grad is not None
    assert log_probs.grad.isfinite().all()


def test_k3_is_exact_where_the_policies_nearly_agree():
    # exp(-d) - 1 + d = d^2/2 - ... = 5e-9 at d = 1e-4: the plain formula in float32 gives 0 or 6e-8.
    estimate = kl_estimate("k3", torch.tensor([1e-4]), torch.zeros(1))
    assert estimate.item() == pytest.approx(5e-9, rel=1e-2)


def controller(kind: Literal["fixed", "adaptive"], coefficient: float = 0.2, horizon: int = 1000) -> KlController:
    settings = ResolvedKl(
        placement="reward", estimator="k1", coefficient=coefficient, controller=kind, target=6.0, horizon=horizon
    )
    return KlController(settings)


@pytest.mark.parametrize(
    ("divergence_per_response", "expected"),
    [
        (6.0, 0.2),  # on target
        (6.6, 0.2 * (1 + 0.1 * 0.256)),  # error 0.6 / 6 = 0.1
        (60.0, 0.2 * (1 + 0.2 * 0.256)),  # bounded at 0.2
        (0.0, 0.2 * (1 - 0.2 * 0.256)),  # bounded at -0.2
    ],
)
def test_the_adaptive_controller_steers_towards_its_target(divergence_per_response: float, expected: float):
    adaptive = controller("adaptive")
    adaptive.update(divergence_per_response, samples=256)
    assert adaptive.coefficient == pytest.approx(expected, rel=1e-12)


def test_only_a_coefficient_that_changes_is_a_metric():
    assert controller("adaptive").metrics() == {"actor/kl_coefficient": 0.2}
    assert controller("fixed").metrics() == {}


def test_a_step_larger_than_the_horizon_never_makes_the_coefficient_negative():
    adaptive = controller("adaptive", horizon=1)
    adaptive.update(0.0, samples=4096)
    assert adaptive.coefficient == pytest.approx(0.2 * 0.8)


def test_the_fixed_controller_stays():
    fixed = controller("fixed")
    fixed.update(60.0, samples=256)
    assert fixed.coefficient == 0.2


def test_an_adaptive_coefficient_survives_a_resume():
    before, after = controller("adaptive"), controller("adaptive")
    before.update(60.0, samples=256)
    after.load_state_dict(before.state_dict())
    assert after.coefficient == before.coefficient != 0.2


def test_a_fixed_coefficient_is_the_specs_even_after_a_resume():
    edited = controller("fixed", coefficient=0.05)
    edited.load_state_dict(controller("fixed").state_dict())
    assert edited.coefficient == 0.05


@pytest.mark.parametrize("kind", ["fixed", "adaptive"])
def test_a_divergence_that_is_not_finite_is_refused(kind: Literal["fixed", "adaptive"]):
    with pytest.raises(JobError, match=r"spec\.actor\.learningRate: the KL divergence from the reference is nan"):
        controller(kind).update(math.nan, samples=8)
