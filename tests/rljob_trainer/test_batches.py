"""From episodes, perhaps of several trajectories, to ranks' plans, and advantages back to each trajectory."""

from dataclasses import replace

import numpy as np
import pytest

from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch
from rljob_trainer.loop.batches import advantages, batch_of_groups, batch_of_rows, gather
from rljob_trainer.loop.metrics import baseline_metrics, length_metrics, reward_metrics, validation_metrics
from rljob_trainer.loop.selection import Selection, first_finished, split_groups, to_try_again
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.progress import names
from rljob_trainer.rollouts.calls import GroupRef
from rljob_trainer.rollouts.rollouts import Rollout
from rljob_trainer.types import Floats, GroupSummary, supervised
from tests.rljob_trainer.checkpoint_support import make_spec


def summary(rewards: list[float], owners: list[int], loss_tokens: list[int], **components: Floats) -> GroupSummary:
    """Prompts of 2 tokens; one more token of a tool in each trajectory."""
    tokens = tuple(2 + 1 + each for each in loss_tokens)
    scores = np.array(rewards, np.float32)
    truncated = (False,) * len(rewards)
    return GroupSummary(
        "0/0/0", scores, components, tuple(owners), tokens, tuple(loss_tokens), 2, truncated, 4, "digest"
    )


GROUPS = [
    summary([1, 0], owners=[0, 0, 1], loss_tokens=[3, 2, 4]),  # the first episode has two trajectories
    summary([0, 1, 1], owners=[0, 1, 2], loss_tokens=[1, 0, 2]),  # the second one's policy never said anything
    summary([5, 1], owners=[0, 1], loss_tokens=[1, 1]),
]


def spec(ranks: int = 1, **algorithm: object):
    return make_spec(ranks, actor={"miniBatchSize": 2, "tokensPerMicroBatch": 8}, algorithm=algorithm)


def test_trajectories_are_numbered_through_groups_and_episodes():
    batch = batch_of_groups(GROUPS, spec())
    assert batch.owners.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    assert batch.groups.tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert (batch.episodes, batch.tokens) == (7, 8 * 3 + 14)
    assert batch.totals == [
        BatchTotals(tokens=12, trajectories=5, positive_tokens=5 + 2),
        BatchTotals(tokens=2, trajectories=2, positive_tokens=2),
    ]
    (plan,) = batch.plans
    assert [sorted(index for part in minibatch for index in part) for minibatch in plan.minibatches] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7],
    ]


def test_each_episode_is_compared_with_its_group_s_greedy_answer():
    groups = [replace(group, baseline=value) for group, value in zip(GROUPS, [0.5, 1.0, 2.0], strict=True)]
    settings = spec(preset="remax", kl={"coefficient": 0})
    batch = batch_of_groups(groups, settings)
    found = batch.of_each(advantages(groups, batch, None, settings))
    assert [each.tolist() for each in found] == [[0.5] * 3, [0.5] * 2, [-0.5] * 4, [-1.0], [], [0.0] * 2, [3.0], [-1.0]]
    assert baseline_metrics(groups) == {names.GROUPS_BASELINE: pytest.approx(3.5 / 3)}


def test_groups_that_teach_nothing_or_are_out_of_bounds_are_set_apart():
    """GROUPS have means of 0.5, 0.67 and 3; then two with equal rewards, one of them unlike its greedy answer."""
    equal = summary([1, 1], owners=[0, 1], loss_tokens=[1, 1])
    given = [*GROUPS, equal, replace(equal, baseline=0.0)]
    refs = [GroupRef(None, index, each) for index, each in enumerate(given)]
    for bounds, expected in (
        ({}, ([0, 1, 2, 4], [3], [])),
        ({"minAccuracy": 0.6, "maxAccuracy": 1.0}, ([1, 4], [3], [0, 2])),
        ({"minAccuracy": 0.5}, ([0, 1, 2, 4], [3], [])),
    ):
        algorithm = spec(preset="dapo", dynamicSampling=bounds).algorithm
        assert tuple([ref.index for ref in part] for part in split_groups(refs, algorithm)) == expected


def test_a_length_penalty_is_no_part_of_a_group_s_accuracy():
    """One response of four is right, another one too long, and a third was not measured."""
    group = summary(
        [1, -0.3, 0, 0], owners=[0, 1, 2, 3], loss_tokens=[1] * 4, long=np.array([0, -0.6, 0, np.nan], np.float32)
    )
    refs = [GroupRef(None, 0, group), GroupRef(None, 1, replace(group, components={}))]
    length = {"name": "long", "builtin": "length_penalty", "weight": 0.5}
    bounds = {"minAccuracy": 0.25, "maxAccuracy": 0.25}
    job = make_spec(rewards={"functions": [length]}, algorithm={"preset": "dapo", "dynamicSampling": bounds})
    useful, _, beyond = split_groups(refs, job.algorithm, job.rewards.penalties)
    assert ([ref.index for ref in useful], [ref.index for ref in beyond]) == ([0], [1])


@pytest.mark.parametrize(("advantage", "teaches"), [("gae", True), ("reinforce_plus_plus", True), ("grpo", False)])
def test_an_episode_that_is_alone_teaches_if_the_advantage_compares_no_group(advantage, teaches):
    alone = summary([1.0], owners=[0], loss_tokens=[2])
    refs = [GroupRef(None, 0, alone), GroupRef(None, 1, replace(alone, baseline=1.0))]
    algorithm = spec(preset="dapo").algorithm.model_copy(update={"advantage": advantage})
    useful, equal, _ = split_groups(refs, algorithm)
    assert [ref.index for ref in useful] == ([0] if teaches else [])
    assert [ref.index for ref in equal] == ([1] if teaches else [0, 1])  # its greedy answer has the same reward


def test_rewards_inside_responses_teach_although_those_of_the_outcome_are_equal():
    equal = summary([1.0, 1.0], owners=[0, 1], loss_tokens=[2, 2])
    refs = [GroupRef(None, 0, equal), GroupRef(None, 1, replace(equal, token_rewards=(((0, 0.5),), ())))]
    algorithm = spec(preset="dapo").algorithm.model_copy(update={"advantage": "gae"})
    useful, flat, _ = split_groups(refs, algorithm)
    assert ([ref.index for ref in useful], [ref.index for ref in flat]) == ([1], [0])


def test_a_step_without_a_group_that_teaches_is_no_longer_than_another():
    """Three rounds of two groups: the first ones with equal rewards, the last one out of bounds."""
    flat, hard = summary([1, 1], owners=[0, 1], loss_tokens=[1, 1]), GROUPS[0]
    given = [*[flat] * 5, hard]
    refs = [GroupRef(None, i, replace(each, task_id=f"0/{i}/0")) for i, each in enumerate(given)]
    selection = Selection(1, 2, spec(preset="dapo", dynamicSampling={"minAccuracy": 0.9}).algorithm)
    for first in (0, 2, 4):
        selection.add(Rollout(refs[first : first + 2], 0.0, 0), 2)
    assert [ref.index for ref in selection.trained()] == [5, 0]
    assert selection.dropped().keys() == {f"0/{i}/0" for i in (1, 2, 3, 4)}


@pytest.mark.parametrize("enabled", [False, True])
def test_a_group_that_the_step_uses_is_not_reported_as_dropped(enabled):
    flat = replace(summary([1, 1], owners=[0, 1], loss_tokens=[1, 1]), task_id="0/1/0")
    selection = Selection(1, 2, spec(preset="dapo", dynamicSampling={"enabled": enabled}).algorithm)
    selection.add(Rollout([GroupRef(None, 0, GROUPS[0]), GroupRef(None, 1, flat)], 0.0, 0), 2)
    assert len(selection.trained()) == (1 if enabled else 2)
    assert selection.dropped() == ({"0/1/0": "uninformative"} if enabled else {})


def test_the_groups_that_were_finished_first_are_used_in_the_order_of_their_tasks():
    refs = [GroupRef(None, index, replace(GROUPS[0], task_id=f"0/{index}/0")) for index in range(4)]
    finished = ["0/3/0", "0/0/0", "0/2/0", "0/1/0"]
    chosen, more = first_finished(refs, 2, finished)
    assert [ref.index for ref in chosen] == [0, 3]
    assert [ref.index for ref in more] == [1, 2]
    assert first_finished(refs, 4, finished) == (refs, [])


def test_a_hard_prompt_is_issued_again_until_its_tries_are_over():
    hard = [replace(summary([0, 0.2], owners=[0, 1], loss_tokens=[1, 1]), task_id=f"0/7/{tried}") for tried in range(3)]
    refs = [GroupRef(None, index, each) for index, each in enumerate([*GROUPS, *hard])]
    bounds = {"minAccuracy": 0.3, "hardRetries": 2}
    settings = spec(preset="dapo", dynamicSampling=bounds).algorithm.dynamic_sampling
    assert to_try_again(refs, settings) == ["0/7/1", "0/7/2"]
    assert to_try_again(refs, settings.model_copy(update={"hard_retries": None})) == []


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", ["grpo", "reinforce_plus_plus"])
def test_an_episode_s_advantages_go_to_all_of_its_trajectories(ranks: int, name):
    settings = spec(ranks, advantage=name, gamma=0.9) if name == "reinforce_plus_plus" else spec(ranks, advantage=name)
    batch = batch_of_groups(GROUPS, settings)
    penalties = np.linspace(0, 0.1, 14, dtype=np.float32)
    rewards = np.array([1, 0, 0, 1, 1, 5, 1], np.float32)
    lengths = np.array([5, 4, 1, 0, 2, 1, 1])  # of episodes
    expected = ADVANTAGES[name](AdvantageBatch(rewards, batch.groups, lengths, penalties, settings.algorithm.gamma))
    by_rank = advantages(GROUPS, batch, penalties, settings)
    assert [len(each) for each in by_rank] == [len(plan.samples) for plan in batch.plans]
    np.testing.assert_array_equal(gather(batch, by_rank), expected)
    assert [len(each) for each in by_rank[0]] == [batch.loss_tokens[index] for index in batch.plans[0].samples]


def test_a_critic_s_minibatches_are_the_actor_s_cut_or_joined():
    """Of 1 prompt for the actor and 2 for the critic, and the other way round: the same passes in the same order."""
    for ours, theirs in ((1, 2), (2, 1)):
        actor = {"miniBatchSize": ours, "tokensPerMicroBatch": 8}
        data = {"train": ["rows"], "promptsPerStep": 4, "maxPromptTokens": 4, "maxResponseTokens": 4}
        critic = {"miniBatchSize": theirs}
        settings = make_spec(2, actor=actor, data=data, algorithm={"preset": "ppo"}, critic=critic)
        batch = batch_of_groups(GROUPS, settings)
        assert [len(each) for each in (batch.totals, batch.critic_totals)] == [-(-3 // ours), -(-3 // theirs)]
        assert sum(batch.totals, start=BatchTotals(0, 0)) == sum(batch.critic_totals, start=BatchTotals(0, 0))
        for plan, other in zip(batch.plans, batch.critic_plans, strict=True):
            assert plan.samples == other.samples
            passes = [[each for minibatch in one.minibatches for each in minibatch] for one in (plan, other)]
            assert passes[0] == passes[1]


def test_supervised_rows_are_one_minibatch():
    rows = [supervised(np.arange(n, dtype=np.int32), [slice(1, 2), slice(3, n)]) for n in (4, 6)]
    batch = batch_of_rows(rows, spec())
    assert batch.totals == [BatchTotals(tokens=6, trajectories=2)]
    assert batch.tokens == 10


def test_metrics_count_episodes():
    lacking = np.array([0.5, np.nan], np.float32)
    groups = [summary([1, 0], [0, 0, 1], [3, 2, 4], exact=lacking), summary([2], [0], [1], calls=lacking[1:])]
    rewards, lengths = reward_metrics(groups), length_metrics(groups)
    assert rewards[names.REWARD_MEAN] == 1
    assert rewards["reward/exact"] == 0.5
    assert "reward/calls" not in rewards
    assert (lengths[names.RESPONSE_LENGTH_MEAN], lengths[names.RESPONSE_LENGTH_MAX]) == (pytest.approx(10 / 3), 5)


def test_validation_has_means_of_each_data_source_and_component():
    one, two = summary([1, 0], [0, 1], [3, 2], own=np.array([1, 0]), acc=np.array([1, np.nan])), summary([4], [0], [1])
    groups = [replace(one, task_id="v/0/0"), replace(two, task_id="v/1/0")]
    sources = {"v/0/0": "openai/gsm8k", "v/1/0": "a*b"}
    assert validation_metrics(groups, sources) == {
        names.VALIDATION_REWARD: pytest.approx(5 / 3), "validation/reward/own": 0.5, "validation/reward/acc": 1,
        "validation/openai/gsm8k/reward": 0.5, "validation/openai/gsm8k/reward/own": 0.5,
        "validation/openai/gsm8k/reward/acc": 1, "validation/a_b/reward": 4,
    }  # fmt: skip
    assert validation_metrics(groups[1:], {"v/1/0": "a*b"}) == {names.VALIDATION_REWARD: 4}
    assert validation_metrics([], sources) == {}
