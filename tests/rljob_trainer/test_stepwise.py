"""Advantages of turns against numbers worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch, Turns, per_step
from rljob_trainer.advantage.stepwise import returns
from rljob_trainer.environments.session import Filter, _filtered
from rljob_trainer.journal.summary import summarise
from rljob_trainer.loop.batches import advantages, batch_of_groups
from rljob_trainer.loop.selection import split_groups
from rljob_trainer.types import Episode, Group, Task, Trajectory, Turn
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.journal_support import group_ref
from tests.rljob_trainer.rollouts_support import ids

ROOT = 2**-0.5
TASK = Task("0/0/0", [], ids(5), None, {}, "game")


def batch(gamma: float = 1.0) -> AdvantageBatch:
    """Group 0: an episode of three turns and one of two. Group 1: one of a turn."""
    turns = Turns(
        owners=np.array([0, 0, 0, 1, 1, 2]),
        lengths=np.array([1, 2, 1, 1, 1, 2]),
        rewards=np.array([0, 0, 1, 0.5, 0, 3], np.float32),
        states=np.array([7, 8, 7, 7, 8, 7]),
        order=np.array([0, 1, 2, 0, 1, 0]),
    )
    rewards = np.array([1, 0.5, 3], np.float32)
    return AdvantageBatch(rewards, np.array([0, 0, 1]), np.array([4, 2, 2]), gamma=gamma, turns=turns)


def test_returns_are_discounted_over_the_turns_of_an_episode():
    assert returns(batch(0.5)).tolist() == [0.25, 0.5, 1, 0.5, 0, 3]


def test_per_step_compares_a_turn_with_the_same_turn_of_other_episodes():
    # gamma 0.5. First turns 0.25 and 0.5: mean 0.375, std 0.125 sqrt(2), so -+ 1 / sqrt(2). Second turns 0.5 and 0:
    # +- the same. The third turn and the other group are alone: 0.
    found = ADVANTAGES["grpo"](per_step(batch(0.5)))
    assert found == pytest.approx([-ROOT, ROOT, ROOT, 0, ROOT, -ROOT, 0, 0], abs=1e-4)
    # rloo: x - mean of the others: 0.25 - 0.5, 0.5 - 0, ...
    found = ADVANTAGES["rloo"](per_step(batch(0.5)))
    assert found[:6] == pytest.approx([-0.25, 0.5, 0.5, found[3], 0.25, -0.5])


def test_the_penalties_of_later_turns_lower_the_return_of_a_turn():
    given = replace(batch(0.5), token_penalties=np.array([0.1, 0.2, 0.2, 0.4, 0.1, 0.3, 0, 0], np.float32))
    # Third turn 1, second 0.5 (1 - 0.4), first 0.5 (0.3 - 0.4); the other episode 0, and 0.5 - 0.5 0.3.
    assert returns(given) == pytest.approx([-0.05, 0.3, 1, 0.35, 0, 3])
    found = ADVANTAGES["rloo"](per_step(given))
    assert found[0] == pytest.approx((-0.05 - 0.1) - (0.35 - 0.1))


def test_gigpo_adds_the_comparison_of_turns_in_the_same_state():
    # Episodes 1 and 0.5: +- 1 / sqrt(2). gamma 0.5, state 7: turns with returns 0.25, 1 and 0.5: mean 7/12,
    # deviations -1/3, 5/12, -1/12, variance (16 + 25 + 1) / 144 / 2 = 21 / 144, std 0.381881. State 8: 0.5 and 0.
    std = 0.381881
    given = replace(batch(0.5), step_weight=2.0)
    found = ADVANTAGES["gigpo"](given)
    expected = [
        ROOT - 2 / 3 / std, ROOT + 2 * ROOT, ROOT + 2 * ROOT, ROOT + 5 / 6 / std, -ROOT - 1 / 6 / std, -ROOT - 2 * ROOT,
        0, 0,
    ]  # fmt: skip
    assert found == pytest.approx(expected, abs=1e-4)
    assert ADVANTAGES["gigpo"](replace(given, step_weight=0.0)).tolist() == ADVANTAGES["grpo"](given).tolist()


def test_a_turn_s_reward_is_that_of_its_last_token_where_tokens_have_rewards():
    # gamma 0.5 a token; episode 0: tokens 0 | 0 0 | 1: 0.125 0.25 0.5 1; episode 1: 0.5 | 0; episode 2: 0 3: 1.5 3.
    raw = np.array([0.125, 0.25, 0.5, 1, 0.5, 0, 1.5, 3])
    found = ADVANTAGES["reinforce_plus_plus"](batch(0.5))
    assert found == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-5)
    values = replace(batch(), values=np.zeros(8, np.float32))
    raw = np.array([1, 1, 1, 1, 0.5, 0, 3, 3])
    assert ADVANTAGES["gae"](values) == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-5)


def episode(sample: int, *contexts: tuple[list[int], list[tuple[int, int]]], **settings) -> Episode:
    """contexts: tokens, and the spans of turns."""
    parts = []
    for tokens, spans in contexts:
        in_loss = np.zeros(len(tokens), np.bool_)
        for start, end in spans:
            in_loss[start:end] = True
        zeros = np.zeros(len(tokens), np.float32)
        turns = tuple(Turn(*span, 1.0, "stop") for span in spans)
        parts.append(Trajectory(ids(*tokens), in_loss, zeros, zeros.astype(np.int32), turns))
    return Episode("0/0/0", sample, tuple(parts), **settings)


def test_turns_of_a_group_are_summarised_and_reach_their_tokens():
    first = episode(0, ([5, 1, 1, 6, 2], [(1, 3), (4, 5)]), reward=2.0, turn_rewards=np.array([0.5, 0.5], np.float32))
    second = episode(1, ([5, 3], [(1, 2)]), ([5, 6, 4, 4], [(2, 4)]), reward=1.0)
    summary = summarise(Group(TASK, (first, second)))
    assert summary.turns is not None
    assert (summary.turns.owners, summary.turns.tokens) == ((0, 0, 1, 1), (2, 1, 1, 2))
    assert summary.turns.rewards.tolist() == [0.5, 1.5, 0, 1], "what no turn accounts for is the last one's"
    begin, middle, again, rewritten = summary.turns.states
    assert begin == again
    assert len({begin, middle, rewritten}) == 3
    spec = make_spec(1, algorithm={"stepwise_advantage": "per_step", "advantage": "dr_grpo"})
    made = batch_of_groups([summary], spec)
    parts = made.of_each(advantages([summary], made, None, spec))
    # Returns 2 1.5 | 1 1: the first turns have the mean 1.5, the second ones 1.25.
    assert [part.tolist() for part in parts] == [[0.5, 0.5, 0.25], [-0.5], [-0.25, -0.25]]


def test_turns_of_contexts_that_alternate_are_compared_by_when_they_were_taken():
    """Two agents: the first context has turns 0 and 2, and comes last; the other one has turn 1."""
    given = batch(0.5)
    assert given.turns is not None
    turns = replace(given.turns, order=np.array([1, 0, 2, 0, 1, 0]))
    assert returns(replace(given, turns=turns)).tolist() == [0.5, 0.25, 1, 0.5, 0, 3]
    # The turn of one token is the second one: 0.5, against 0; the two tokens are the first turn's: 0.25 against 0.5.
    found = ADVANTAGES["grpo"](per_step(replace(given, turns=turns)))
    assert found == pytest.approx([ROOT, -ROOT, -ROOT, 0, ROOT, -ROOT, 0, 0], abs=1e-4)
    made = episode(0, ([5, 3], [(1, 2)]), ([5, 6, 4, 4], [(1, 2), (3, 4)]), reward=1.0, order=(1, 0, 2))
    summary = summarise(Group(TASK, (made, replace(made, order=(), sample=1))))
    assert summary.turns is not None
    assert summary.turns.order == (1, 0, 2, 0, 1, 2)


def turns(sample: int, *rewards: float, how: Filter = "train") -> Episode:
    """An episode with a turn of one token for each reward."""
    tokens = [5, *(token for turn in range(len(rewards)) for token in (1, 6 + turn))]
    spans = [(1 + 2 * turn, 2 + 2 * turn) for turn in range(len(rewards))]
    own = episode(sample, (tokens, spans), reward=sum(rewards), turn_rewards=np.array(rewards, np.float32))
    return _filtered(own, how, "ended at a limit")


GAMMA = 0.5
PLAYED = {
    # Returns of turns: 1 | 0.5 1. The rewards are equal, and the first turns are not.
    "sooner": (turns(0, 1), turns(1, 0, 1)),
    # 0.5 | 0.5 1: the rewards are 0.5 and 1, the first turns are equal, and the second one is alone.
    "later but more": (turns(0, 0.5), turns(1, 0, 1)),
    # 1 | 1 | 1 1 | 1 2: only second turns differ, and they are not in the loss.
    "masked differ": (turns(0, 1), turns(1, 1), turns(2, 0.5, 1, how="mask"), turns(3, 0, 2, how="mask")),
    # 0 | 0.5 1: the masked episode is what the other one is compared with.
    "masked is better": (turns(0, 0), turns(1, 0, 1, how="mask")),
    # 1 |: the other one is left out, so the first is alone.
    "dropped": (turns(0, 1), turns(1, 0, 1, how="drop")),
}


@pytest.mark.parametrize(
    ("algorithm", "useful"),
    [
        ({"advantage": "grpo"}, ["later but more", "masked differ", "masked is better"]),
        ({"advantage": "grpo", "stepwiseAdvantage": "per_step", "gamma": GAMMA}, ["sooner", "masked is better"]),
        (
            {"advantage": "gigpo", "gamma": GAMMA},
            ["sooner", "later but more", "masked differ", "masked is better"],
        ),
        (
            {"advantage": "gigpo", "gamma": GAMMA, "stepAdvantageW": 0},
            ["later but more", "masked differ", "masked is better"],
        ),
    ],
)
def test_groups_that_are_left_out_are_those_whose_advantages_are_0(algorithm, useful):
    """Dynamic sampling, step-wise advantages and compact filtering together."""
    sampling = {"enabled": True, "maxRounds": 2}
    spec = make_spec(1, algorithm={"preset": "grpo", "dynamicSampling": sampling, **algorithm})
    refs = [group_ref(group, [group]) for group in (Group(replace(TASK, id=name), e) for name, e in PLAYED.items())]
    found = split_groups(refs, spec.algorithm)
    assert [[ref.summary.task_id for ref in part] for part in found] == [
        useful, [name for name in PLAYED if name not in useful], [],
    ]  # fmt: skip
    for ref in refs:
        made = batch_of_groups([ref.summary], spec)
        values = np.concatenate(made.of_each(advantages([ref.summary], made, None, spec)))
        assert (np.abs(values).max() > 1e-3) == (ref.summary.task_id in useful), ref.summary.task_id


def test_masked_episodes_are_compared_with_turn_by_turn_and_have_no_advantages():
    spec = make_spec(1, algorithm={"advantage": "grpo", "stepwiseAdvantage": "per_step", "gamma": GAMMA})
    groups = [
        summarise(Group(replace(TASK, id=name), PLAYED[name]))
        for name in ("sooner", "masked is better", "masked differ")
    ]
    made = batch_of_groups(groups, spec)
    parts = made.of_each(advantages(groups, made, None, spec))
    # sooner: 1 and 0.5 are +- 1 / sqrt(2), the second turn is alone. masked is better: 0 and 0.5 are -+ the same.
    expected = [[ROOT], [-ROOT, 0], [-ROOT], [], [0], [0], [], []]
    assert [part.tolist() for part in parts] == [pytest.approx(each, abs=1e-4) for each in expected]


def test_episodes_of_one_turn_have_no_summary_of_turns():
    single = episode(0, ([5, 1], [(1, 2)]), reward=1.0)
    assert summarise(Group(TASK, (single,))).turns is None
