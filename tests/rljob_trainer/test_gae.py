"""GAE and the value loss: numbers worked out by hand, and verl's (tools/verl_golden.py)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch, value_targets
from rljob_trainer.errors import JobError
from rljob_trainer.losses.value import value_loss

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("verl.json").read_text())


def batch(values, rewards=(1.0, 0.0), lengths=(3, 1), **more):
    given = {"gamma": 0.5, "lambda_": 0.5, **more}
    every = np.arange(len(lengths))
    return AdvantageBatch(
        np.array(rewards, np.float32), every, np.array(lengths), values=np.array(values, np.float32), **given
    )


def test_errors_are_added_up_backwards_with_gamma_and_lambda():
    """Rewards 0 0 1 and 0; values 0.5 0.25 1 and 2. Errors: 0 + 0.5 x 0.25 - 0.5 = -0.375; 0.5 x 1 - 0.25 = 0.25;
    1 - 1 = 0; 0 - 2 = -2. Their sums with 0.25: -0.375 + 0.25 x 0.25 = -0.3125; 0.25; 0; -2."""
    given = batch([0.5, 0.25, 1.0, 2.0])
    sums = np.array([-0.3125, 0.25, 0.0, -2.0])
    np.testing.assert_allclose(value_targets(given, 0.5), sums + np.array([0.5, 0.25, 1.0, 2.0]), atol=1e-7)
    whitened = (sums - sums.mean()) / np.sqrt(sums.var() + 1e-8)
    np.testing.assert_allclose(ADVANTAGES["gae"](given), whitened, atol=1e-6)


def test_with_lambda_1_the_critic_learns_discounted_rewards_whatever_its_values():
    np.testing.assert_allclose(value_targets(batch([3.0, -1.0, 7.0, 2.0]), 1.0), [0.25, 0.5, 1.0, 0.0], atol=1e-6)


def test_lambda_follows_the_length_of_each_episode():
    """alpha 0.5: 1 - 1 / 1.5 = 1/3 of 3 tokens, and 0 instead of -1 of one. The first sum is -0.375 + 0.25 / 6."""
    given = batch([0.5, 0.25, 1.0, 2.0], lambda_alpha=0.5)
    sums = np.array([-0.375 + 0.25 / 6, 0.25, 0.0, -2.0])
    whitened = (sums - sums.mean()) / np.sqrt(sums.var() + 1e-8)
    np.testing.assert_allclose(ADVANTAGES["gae"](given), whitened, atol=1e-6)
    np.testing.assert_array_equal(value_targets(given, 1.0), value_targets(batch([0.5, 0.25, 1.0, 2.0]), 1.0))


def test_penalties_are_rewards_of_their_tokens():
    given = batch([0.0] * 4, token_penalties=np.array([0.1, 0.2, 0.3, 0.4], np.float32), gamma=1.0)
    np.testing.assert_allclose(value_targets(given, 1.0), [0.4, 0.5, 0.7, -0.4], atol=1e-6)


def test_an_episode_without_tokens_has_no_part_in_it():
    given = batch([0.5, 0.25, 1.0, 2.0], rewards=(5.0, 1.0, 7.0, 0.0, 9.0), lengths=(0, 3, 0, 1, 0))
    np.testing.assert_array_equal(ADVANTAGES["gae"](given), ADVANTAGES["gae"](batch([0.5, 0.25, 1.0, 2.0])))
    assert ADVANTAGES["gae"](batch([], rewards=(1.0,), lengths=(0,), gamma=1.0)).shape == (0,)


def test_values_that_are_not_finite_name_the_critic():
    with pytest.raises(JobError, match=r"^spec\.critic\.learningRate: a value is not finite"):
        batch([np.nan, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="needs the values of a critic"):
        ADVANTAGES["gae"](AdvantageBatch(np.ones(1, np.float32), np.zeros(1, np.int64), np.ones(1, np.int64)))


@pytest.mark.parametrize("case", GOLDEN["gae"], ids=lambda case: f"gamma {case['gamma']}, lambda {case['lambda']}")
def test_gae_is_verls(case):
    given = GOLDEN["inputs"]
    made = AdvantageBatch(
        np.array(given["rewards"], np.float32), np.array(given["groups"]), np.array(given["lengths"]),
        gamma=case["gamma"], values=np.array(given["values"], np.float32), lambda_=case["lambda"],
    )  # fmt: skip
    count = made.tokens  # verl whitens with the variance over n - 1 tokens
    expected = np.array(case["advantages"]) * np.sqrt(count / (count - 1))
    np.testing.assert_allclose(ADVANTAGES["gae"](made), expected, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(value_targets(made, case["lambda"]), case["returns"], rtol=2e-5, atol=1e-6)


def test_the_value_loss_is_verls():
    given, golden = GOLDEN["inputs"], GOLDEN["value_loss"]
    values = torch.tensor(given["new_values"], dtype=torch.float64, requires_grad=True)
    returns = torch.tensor(given["token_returns"], dtype=torch.float64)
    terms = value_loss(values, torch.tensor(given["values"], dtype=torch.float64), returns, golden["clipRange"])
    loss = terms.per_token.mean()
    loss.backward()
    assert loss.item() == pytest.approx(golden["loss"], rel=1e-6)
    assert terms.clipped.double().mean().item() == pytest.approx(golden["clipFraction"], rel=1e-6)
    assert values.grad is not None
    np.testing.assert_allclose(values.grad.numpy(), golden["gradient"], rtol=1e-6, atol=1e-9)
    assert 0 < golden["clipFraction"] < 1


def test_a_value_beyond_its_bound_has_no_gradient_if_that_looks_worse():
    """Old values 0, bound 0.5, return 2: 1 counts as 0.5, whose error of 2.25 / 2 is the larger one; -1 counts as -0.5,
    whose error is smaller than its own of 9 / 2."""
    values = torch.tensor([1.0, -1.0, 0.25], requires_grad=True)
    terms = value_loss(values, torch.zeros(3), torch.full((3,), 2.0), 0.5)
    terms.per_token.sum().backward()
    assert terms.per_token.tolist() == [1.125, 4.5, 3.0625 / 2]
    assert terms.clipped.tolist() == [True, False, False]
    assert values.grad is not None
    assert values.grad.tolist() == [0.0, -3.0, -1.75]
