"""Rewards inside a response: from a function's characters to the advantages of tokens."""

from dataclasses import replace

import numpy as np
import pytest

from rljob_trainer.errors import RewardError
from rljob_trainer.journal.record import Made, decode_made, encode_made, made_key
from rljob_trainer.journal.summary import group_digest, summarise
from rljob_trainer.loop.batches import advantage_batch, batch_of_groups
from rljob_trainer.rewards.spans import credited
from rljob_trainer.types import Episode, Group, Trajectory, Turn
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.journal_support import agents_episode, task
from tests.rljob_trainer.test_scorer import TASK, episode, scored, tokenizer

__all__ = ["tokenizer"]

WORDS = {0: "", 1: "ab", 2: "c", 3: "def", 9: "<end>"}
IN_LOSS = [False, False, True, True, False, True, True]
PART = Trajectory(
    np.array([5, 5, 1, 2, 5, 3, 9], np.int32), np.array(IN_LOSS), np.zeros(7, np.float32), np.full(7, 4, np.int32),
    (Turn(2, 4, 1.0, "stop"), Turn(5, 7, 1.0, "stop")),
)  # fmt: skip
"""Its text is ab c def: two turns with a tool's token between them, and an end token behind the second."""


def decode(ids):
    return "".join(WORDS[each] for each in ids)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(1, 0.5)], ((0, 0.5),)),  # a, in ab
        ([(2, 0.5), (3, 1.0)], ((0, 0.5), (1, 1.0))),
        ([(6, 2.0), (4, 1.0)], ((2, 3.0),)),  # d and f are in one token
    ],
)
def test_a_span_belongs_to_the_token_with_its_last_character(spans, expected):
    made = Episode("0/0/0", 0, (PART,))
    assert credited(made, spans, decode, {9}) == expected
    rewritten = Episode("0/0/0", 0, (replace(PART, turns=()), PART))
    assert credited(rewritten, spans, decode, {9}) == tuple((4 + index, value) for index, value in expected)


def test_a_token_that_is_not_in_the_loss_gives_its_reward_to_the_last_one_before_it():
    in_loss = PART.in_loss.copy()
    in_loss[[2, 5]] = False  # ab and def
    made = Episode("0/0/0", 0, (replace(PART, in_loss=in_loss),))
    assert credited(made, [(6, 1.0), (1, 2.0)], decode, {9}) == ((0, 3.0),)  # c; nothing is before ab
    nothing = Episode("0/0/0", 0, (replace(PART, in_loss=np.zeros(7, np.bool_)),))
    assert credited(nothing, [(6, 1.0)], decode, {9}) == ()


@pytest.mark.parametrize("end", [0, 7, -1])
def test_a_span_outside_of_the_text_is_refused(end):
    with pytest.raises(RewardError, match=f"a span ends at {end}, and the response has 6 characters"):
        credited(Episode("0/0/0", 0, (PART,)), [(end, 1.0)], decode, {9})


FUNCTION = """
def compute_score(response, **_):
    return {"score": 1.0, "spans": [(place + 1, 0.5) for place, letter in enumerate(response) if letter == "b"]}
"""


def test_a_functions_spans_reach_the_tokens_of_its_episodes_with_its_weight(tokenizer, tmp_path):
    functions = [{"name": "b", "source": FUNCTION, "weight": 2.0}, {"name": "exact", "builtin": "exact_match"}]
    episodes = [episode(tokenizer, sample, text) for sample, text in enumerate(["abcb", "ccc"])]
    parts = [replace(each.trajectories[0], in_loss=each.trajectories[0].versions == 7) for each in episodes]
    episodes = [replace(each, trajectories=(part,)) for each, part in zip(episodes, parts, strict=True)]
    group = scored(tmp_path, functions, episodes)
    assert [each.token_rewards for each in group.episodes] == [((1, 1.0), (3, 1.0)), ()]
    assert [each.reward for each in group.episodes] == [2.0, 2.0]
    assert [each.components["b/spans"] for each in group.episodes] == [1.0, 0.0]
    assert summarise(group).token_rewards == (((1, 1.0), (3, 1.0)), ())
    assert group.task == TASK


def test_the_journal_keeps_them_and_the_digest_depends_on_them():
    made = replace(agents_episode(), token_rewards=((1, 0.5), (4, -1.0)))
    record = encode_made(Made(made_key(task(0), 0, "settings"), {6: "six", 7: "seven"}, made), task(0))
    assert decode_made(record, task(0)).episode.token_rewards == made.token_rewards
    groups = [Group(task(0), (each,)) for each in (made, agents_episode())]
    assert group_digest(groups[0]) != group_digest(groups[1])


def inputs(advantage):
    """Two episodes of 3 and 2 tokens, of which the first has rewards inside."""
    first, second = (replace(agents_episode(sample=sample), reward=1.0, turn_rewards=None) for sample in range(2))
    groups = [summarise(Group(task(0), (replace(first, token_rewards=((0, 0.5), (2, -1.0))), second)))]
    spec = make_spec(algorithm={"advantage": advantage, "gamma": 0.5} if advantage != "grpo" else {})
    return advantage_batch(groups, batch_of_groups(groups, spec), None, spec)


def test_they_are_part_of_returns():
    """Four tokens each: the rewards of the first are 0.5 0 -1 1, and their discounted sums 0.375 -0.25 -0.5 1."""
    from rljob_trainer.advantage.returns import discounted, token_rewards

    batch = inputs("reinforce_plus_plus")
    assert batch.lengths.tolist() == [4, 4]
    assert token_rewards(batch).tolist() == [0.5, 0, -1, 1, 0, 0, 0, 1]
    assert discounted(token_rewards(batch), batch.lengths, 0.5)[:4].tolist() == [0.375, -0.25, -0.5, 1]


@pytest.mark.parametrize("advantage", ["grpo", "remax"])
def test_an_advantage_that_compares_whole_answers_refuses_them_by_name(advantage):
    with pytest.raises(RewardError, match=f"returned spans, which advantage {advantage} does not support: set algor"):
        inputs(advantage)
