"""Advantages against numbers worked out by hand; test_losses_against_trl.py compares them with TRL's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from rljob_api.v1alpha1.algorithm import Advantage
from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch, uninformative_groups
from rljob_trainer.errors import JobError, RewardError

GROUP_ESTIMATORS: list[Advantage] = ["grpo", "dr_grpo", "rloo", "gpg", "maxrl"]
"""Those that compare an episode with the unweighted mean of its group."""
EVERY_ESTIMATOR: list[Advantage] = [name for name in ADVANTAGES if name != "distillation"]  # it reads no rewards


def batch(
    rewards: Sequence[float],
    groups: Sequence[int],
    lengths: Sequence[int] | None = None,
    penalties: Sequence[float] | None = None,
    gamma: float = 1.0,
) -> AdvantageBatch:
    """The first reward is also that of the greedy answer."""
    return AdvantageBatch(
        np.array(rewards, np.float32),
        np.array(groups, np.int64),
        np.array(lengths or [1] * len(rewards), np.int64),
        None if penalties is None else np.array(penalties, np.float32),
        gamma,
        np.full(len(rewards), rewards[0], np.float32),
        values=np.zeros(sum(lengths or [1] * len(rewards)), np.float32),
    )


def random_batch(seed: int, gamma: float = 1.0) -> AdvantageBatch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, size=12)
    return AdvantageBatch(
        rng.normal(size=12).astype(np.float32),
        rng.permutation(np.repeat([7, 3, 5], 4)),
        lengths,
        rng.normal(scale=0.1, size=lengths.sum()).astype(np.float32),
        gamma,
        rng.normal(size=12).astype(np.float32),
        values=np.zeros(lengths.sum(), np.float32),
    )


def test_every_advantage_of_the_api_is_registered():
    assert set(ADVANTAGES) == set(get_args(Advantage)) - {"custom"}


def test_grpo_divides_the_distance_from_the_mean_by_the_sample_standard_deviation():
    # Group 4: 1, 0, 0 has mean 1/3 and variance (4/9 + 1/9 + 1/9) / 2 = 1/3, so std 0.57735: 2/3 / std, -1/3 / std.
    # Group 9: 2, 4 has mean 3 and variance (1 + 1) / 1 = 2, so std 1.41421: -1 / std, 1 / std.
    advantages = ADVANTAGES["grpo"](batch([1, 2, 0, 4, 0], groups=[4, 9, 4, 9, 4], lengths=[2, 1, 1, 2, 1]))
    expected = [1.154701, 1.154701, -0.707107, -0.577350, 0.707107, 0.707107, -0.577350]
    np.testing.assert_allclose(advantages, expected, atol=3e-6)


def test_dr_grpo_only_subtracts_the_mean():
    advantages = ADVANTAGES["dr_grpo"](batch([1, 2, 0, 4, 0], groups=[4, 9, 4, 9, 4], lengths=[2, 1, 1, 2, 1]))
    np.testing.assert_allclose(advantages, [2 / 3, 2 / 3, -1, -1 / 3, 1, 1, -1 / 3], rtol=1e-6)


def test_rloo_subtracts_the_mean_of_the_others():
    # Group 4: 1 - (0 + 0)/2 = 1, 0 - (1 + 0)/2 = -0.5. Group 9: 2 - 4 = -2, 4 - 2 = 2.
    advantages = ADVANTAGES["rloo"](batch([1, 2, 0, 4, 0], groups=[4, 9, 4, 9, 4], lengths=[2, 1, 1, 2, 1]))
    np.testing.assert_allclose(advantages, [1, 1, -2, -0.5, 2, 2, -0.5], rtol=1e-6)


def test_group_estimators_take_the_summed_penalty_from_the_response_score():
    # Scores: 1 - (0.1 + 0.2) = 0.7 and 1 - 0.5 = 0.5, of mean 0.6.
    penalized = batch([1, 1], groups=[0, 0], lengths=[2, 1], penalties=[0.1, 0.2, 0.5])
    np.testing.assert_allclose(ADVANTAGES["dr_grpo"](penalized), [0.1, 0.1, -0.1], rtol=1e-5)
    np.testing.assert_allclose(ADVANTAGES["rloo"](penalized), [0.2, 0.2, -0.2], rtol=1e-5)
    np.testing.assert_allclose(ADVANTAGES["grpo"](penalized), np.array([1, 1, -1]) / np.sqrt(2), rtol=1e-4)


def test_reinforce_plus_plus_whitens_discounted_token_returns():
    # Token rewards: -0.1, 1 - 0.2 = 0.8 | 0 - 0.4. Returns at gamma 0.5: -0.1 + 0.5 * 0.8 = 0.3, 0.8 | -0.4.
    # Mean 0.7/3 = 0.233333; deviations 0.066667, 0.566667, -0.633333; variance 0.726667/3, std 0.492161.
    advantages = ADVANTAGES["reinforce_plus_plus"](
        batch([1, 0], groups=[0, 1], lengths=[2, 1], penalties=[0.1, 0.2, 0.4], gamma=0.5)
    )
    np.testing.assert_allclose(advantages, [0.135457, 1.151385, -1.286842], atol=2e-6)


def test_reinforce_plus_plus_baseline_whitens_distances_from_the_group_mean():
    # Distances per token: 0.5, 0.5 | -0.5 | 0, 0, 0 | 0. Mean 0.5/7 = 0.0714286; variance 0.75/7 - 0.0051020
    # = 0.1020408, std 0.3194383: 0.4285714 / std, -0.5714286 / std, -0.0714286 / std.
    advantages = ADVANTAGES["reinforce_plus_plus_baseline"](
        batch([1, 0, 1, 1], groups=[0, 0, 1, 1], lengths=[2, 1, 3, 1])
    )
    np.testing.assert_allclose(advantages, [1.341641] * 2 + [-1.788854] + [-0.223607] * 4, atol=2e-6)


def test_remax_subtracts_the_reward_of_the_greedy_answer_from_returns():
    given = batch([1, 0], groups=[0, 1], lengths=[2, 1], penalties=[0.1, 0.2, 0.3])
    with_baselines = replace(given, baselines=np.array([0.5, 0.25], np.float32))
    # 1 - 0.2 - 0.1 - 0.5, then 1 - 0.2 - 0.5; 0 - 0.3 - 0.25
    np.testing.assert_allclose(ADVANTAGES["remax"](with_baselines), [0.2, 0.3, -0.55], rtol=1e-6)
    with pytest.raises(ValueError, match="greedy"):
        ADVANTAGES["remax"](replace(given, baselines=None))


def test_opo_subtracts_the_mean_weighted_by_length():
    # Group 0: (2 x 1 + 1 x 0 + 1 x 0) / 4 = 0.5. Group 1: (3 x 2 + 1 x 4) / 4 = 2.5.
    advantages = ADVANTAGES["opo"](batch([1, 0, 0, 2, 4], groups=[0, 0, 0, 1, 1], lengths=[2, 1, 1, 3, 1]))
    np.testing.assert_allclose(advantages, [0.5, 0.5, -0.5, -0.5, -0.5, -0.5, -0.5, 1.5], rtol=1e-6)
    masked = ADVANTAGES["opo"](batch([1, 0, 0, 9], groups=[0] * 4, lengths=[2, 1, 1, 0]))
    np.testing.assert_allclose(masked, advantages[:4], rtol=1e-6)


def test_gpg_makes_up_for_groups_that_teach_nothing():
    # Of 6 episodes 2 are in a group of equal rewards: alpha = 6 / 4. Distances from the mean: +-0.5, +-1.
    advantages = ADVANTAGES["gpg"](batch([1, 0, 1, 1, 2, 4], groups=[0, 0, 1, 1, 2, 2]))
    np.testing.assert_allclose(advantages, [0.75, -0.75, 0, 0, -1.5, 1.5], rtol=1e-6)


def test_grpo_passk_credits_the_best_by_its_lead():
    # Group 0: 4 - 1 = 3 over the deviation of (1, 4, 1), sqrt(3). Group 1: the best score occurs twice. Group 2: alone.
    advantages = ADVANTAGES["grpo_passk"](batch([1, 4, 1, 1, 1, 0, 5], groups=[0, 0, 0, 1, 1, 1, 2]))
    np.testing.assert_allclose(advantages, [0, 3 / np.sqrt(3), 0, 0, 0, 0, 0], rtol=1e-5)


def test_maxrl_divides_by_the_group_s_mean():
    # One success of four: mean 0.25, (1 - 0.25) / 0.25 = 3 = n - 1. Three of four: 0.25 / 0.75. No success: 0.
    advantages = ADVANTAGES["maxrl"](batch([1, 0, 0, 0, 1, 1, 1, 0, 0, 0], groups=[0] * 4 + [1] * 4 + [2] * 2))
    np.testing.assert_allclose(advantages, [3, -1, -1, -1, 1 / 3, 1 / 3, 1 / 3, -1, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("name", EVERY_ESTIMATOR)
def test_an_episode_without_tokens_counts_in_its_group_and_gets_no_advantage(name: Advantage):
    """As one that its environment ended before the policy said anything."""
    some = ADVANTAGES[name](batch([1, 7, 0], groups=[0, 0, 0], lengths=[2, 0, 1], penalties=[0.1, 0.2, 0.3]))
    assert some.shape == (3,)
    if name == "grpo_passk":
        assert not some.any(), "the episode without tokens had the best reward"
    elif name in GROUP_ESTIMATORS:
        assert some.max() < 0, "the episode without tokens had the best reward"
    else:
        assert some.any()


def one_return_at_a_time(given: AdvantageBatch) -> list[float]:
    assert given.token_penalties is not None
    returns, start = [], 0
    for reward, length in zip(given.rewards.tolist(), given.lengths.tolist(), strict=True):
        rewards = [-penalty for penalty in given.token_penalties[start : start + length].tolist()]
        rewards[-1] += reward
        returns += [sum(r * given.gamma**k for k, r in enumerate(rewards[t:])) for t in range(length)]
        start += length
    return returns


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_reinforce_plus_plus_agrees_with_returns_summed_one_token_at_a_time(gamma: float):
    given = random_batch(seed=3, gamma=gamma)
    returns = np.array(one_return_at_a_time(given))
    expected = (returns - returns.mean()) / returns.std()
    np.testing.assert_allclose(ADVANTAGES["reinforce_plus_plus"](given), expected, atol=1e-5)


@pytest.mark.parametrize("name", EVERY_ESTIMATOR)
@pytest.mark.parametrize("reward", [0.0, 0.1, -1 / 3, 1e6 / 7])
@pytest.mark.parametrize("responses", [1, 3, 7, 1000])
def test_equal_rewards_give_exactly_0(name: Advantage, reward: float, responses: int):
    advantages = ADVANTAGES[name](batch([reward] * responses, groups=[0] * responses, lengths=[3] * responses))
    assert not advantages.any()


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_a_group_of_one_gets_exactly_0(name: Advantage):
    assert ADVANTAGES[name](batch([3.7, 1, 0], groups=[0, 1, 1], lengths=[2, 1, 1]))[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", EVERY_ESTIMATOR)
def test_the_order_of_responses_does_not_matter(name: Advantage):
    given = random_batch(seed=7)
    assert given.token_penalties is not None
    order = np.random.default_rng(0).permutation(12)
    starts = np.cumsum(given.lengths) - given.lengths
    tokens = np.concatenate([np.arange(starts[i], starts[i] + given.lengths[i]) for i in order])
    assert given.baselines is not None
    penalties, baselines = given.token_penalties[tokens], given.baselines[order]
    shuffled = AdvantageBatch(
        given.rewards[order], given.groups[order], given.lengths[order], penalties, baselines=baselines,
        values=given.values,
    )  # fmt: skip
    np.testing.assert_allclose(ADVANTAGES[name](shuffled), ADVANTAGES[name](given)[tokens], atol=1e-6)


@pytest.mark.parametrize("name", EVERY_ESTIMATOR)
def test_advantages_are_one_float32_per_token(name: Advantage):
    given = random_batch(seed=8)
    advantages = ADVANTAGES[name](given)
    assert advantages.dtype == np.float32
    assert advantages.shape == (given.tokens,)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_not_finite_is_refused_by_name(broken: float):
    with pytest.raises(RewardError, match=r"spec\.rewards: 1 of 3 .* (nan|-?inf) of episode 1 \(group 8\)"):
        batch([0, broken, 1], groups=[7, 8, 8])
    with pytest.raises(RewardError, match=r"episode 1 \(group 8\)"):
        uninformative_groups(np.array([0, broken, 1], np.float32), np.array([7, 8, 8]))


def test_a_penalty_that_is_not_finite_means_that_the_policy_diverged():
    with pytest.raises(JobError, match=r"spec\.actor\.learningRate: .* diverged"):
        batch([0, 1], groups=[0, 0], penalties=[0.1, np.nan])


@pytest.mark.parametrize(
    ("groups", "lengths", "penalties", "message"),
    [
        ([0], [1, 1], None, r"must be \[N\]"),
        ([0, 0], [1], None, r"must be \[N\]"),
        ([0, 0], [1, 2], [0.1, 0.2], r"token_penalties must be \[3\]"),
    ],
)
def test_shapes_that_disagree_are_refused(
    groups: list[int], lengths: list[int], penalties: list[float] | None, message: str
):
    with pytest.raises(ValueError, match=message):
        batch([0, 1], groups, lengths, penalties)


@pytest.mark.parametrize(
    ("rewards", "groups", "expected"),
    [
        ([1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 2, 2], [1, 2]),
        ([1, 2, 1, 3], [5, 2, 5, 2], [5]),
        ([0.1, 0.1, 0.1], [0, 0, 0], [0]),
        ([1, 1, 0], [0, 1, 1], [0]),
        ([], [], []),
    ],
)
def test_groups_with_equal_rewards_are_uninformative(rewards: list[float], groups: list[int], expected: list[int]):
    found = uninformative_groups(np.array(rewards, np.float32), np.array(groups, np.int64))
    assert found.tolist() == expected
