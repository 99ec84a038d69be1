"""The episodes of a group in, the group with its rewards out."""

import asyncio
import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from rljob_api.v1alpha1 import Environment, Rewards
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import RewardError
from rljob_trainer.journal.summary import summarise
from rljob_trainer.rewards.scorer import Scorer
from rljob_trainer.types import NOT_SAMPLED, Episode, Trajectory, Turn
from tests.rljob_trainer.chat_templates import python_tokenizer
from tests.rljob_trainer.journal_support import task

TASK = replace(task(3), ground_truth="cba")
EXACT = {"name": "exact", "builtin": "exact_match"}
LENGTH = {"name": "length", "builtin": "length_penalty", "arguments": {"max_tokens": 4, "buffer_tokens": 2}}
NAN = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return float('nan')"


@pytest.fixture
def tokenizer(tmp_path):
    tokenizer = build_tokenizer(TokenizerSpec(), ["abc"])
    tokenizer.save_pretrained(tmp_path)
    return tokenizer


def episode(tokenizer, sample, *texts, reason="stop"):
    """Turns with those texts, each behind a token that the policy did not sample."""
    ids, turns = TASK.token_ids.tolist(), []
    for text in texts:
        ids.append(0)
        start = len(ids)
        ids += tokenizer.encode(text, add_special_tokens=False)
        turns.append(Turn(start, len(ids), 1.0, reason))
    T = len(ids)
    versions = np.full(T, NOT_SAMPLED, np.int32)
    for turn in turns:
        versions[turn.start : turn.end] = 7
    none = np.zeros(T, np.bool_)
    part = Trajectory(np.array(ids, np.int32), none, np.zeros(T, np.float32), versions, tuple(turns))
    return Episode(TASK.id, sample, (part,))


def scored(folder, functions, episodes, **rewards):
    settings = Rewards.model_validate({"functions": functions, "processes": 1, **rewards})
    scorer = Scorer(settings, folder, folder, {}, trust_remote_code=True)
    try:
        return asyncio.run(scorer.score(TASK, episodes))
    finally:
        scorer.close()


def test_answers_are_decoded_without_their_end_and_scored_by_all_rewards(tokenizer, tmp_path):
    given = [("cba<|end|>", "stop"), ("ccc", "length"), ("ab<|end|>", "stop")]
    episodes = [episode(tokenizer, i, text, reason=reason) for i, (text, reason) in enumerate(given)]
    group = scored(tmp_path, [EXACT, LENGTH], episodes)
    assert (group.task, group.error) == (TASK, None)
    assert [each.reward for each in group.episodes] == [0, -0.5, -0.5]
    assert [each.components for each in group.episodes] == [
        {"exact": 1, "length": -1}, {"exact": 0, "length": -0.5}, {"exact": 0, "length": -0.5},
    ]  # fmt: skip
    assert [each.trajectories for each in group.episodes] == [each.trajectories for each in episodes]


def test_rewards_see_what_was_sampled_in_the_last_context(tokenizer, tmp_path):
    turns = episode(tokenizer, 0, "c", "b<|end|>", "a")
    before = episode(tokenizer, 0, "abc").trajectories
    rewritten = replace(turns, trajectories=(*before, *turns.trajectories))
    nothing = replace(turns, trajectories=(episode(tokenizer, 0).trajectories))
    assert [each.reward for each in scored(tmp_path, [EXACT], [turns, rewritten, nothing]).episodes] == [1, 1, 0]


TELL = "def compute_score(data_source, solution_str, ground_truth, extra_info): return float(solution_str == {!r})"


@pytest.mark.parametrize("kind", ["fast", "python"])
def test_special_tokens_inside_a_response_reach_the_reward_as_text(tokenizer, tmp_path, kind):
    """Except the token that ended the turn; <|user|> ends one too here, as generation_config.json says."""
    if kind == "python":
        (tmp_path / "tokenizer.json").unlink()
        tokenizer = python_tokenizer(tmp_path)
    end = tokenizer.convert_tokens_to_ids("<|user|>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    given = {"a<|assistant|>b<|end|>": "a<|assistant|>b", "<|user|>c<|user|>": "<|user|>c", "ab": "ab"}
    functions = [{"name": f"tell-{i}", "source": TELL.format(text)} for i, text in enumerate(given.values())]
    episodes = [episode(tokenizer, i, sampled) for i, sampled in enumerate(given)]
    group = scored(tmp_path, functions, episodes)
    assert [each.components[f"tell-{i}"] for i, each in enumerate(group.episodes)] == [1, 1, 1]


def test_a_response_without_a_reward_ends_the_job_or_drops_its_group(tokenizer, tmp_path):
    functions, episodes = [EXACT, {"name": "own", "source": NAN}], [episode(tokenizer, 0, "abc")]
    with pytest.raises(RewardError, match="returned nan"):
        scored(tmp_path, functions, episodes)
    group = scored(tmp_path, functions, episodes, onError="drop_group")
    assert np.isnan(group.episodes[0].reward)
    assert group.error is not None
    assert "reward own returned nan, for prompt 0/3/0, sample 0" in group.error


# ---- episodes of environments


def played(tokenizer, sample, reward, *texts, failed=False, masked=False):
    made = replace(episode(tokenizer, sample, *texts), reward=reward)
    (part,) = made.trajectories
    trained = replace(part, in_loss=(part.versions != NOT_SAMPLED) & (not masked))
    return replace(made, trajectories=() if failed else (trained,), reason="crashed" if failed else "")


def scored_games(folder, functions, episodes, **environment):
    settings = Rewards.model_validate({"functions": functions, "processes": 1})
    game = Environment(source="x", **environment)
    scorer = Scorer(settings, folder, folder, {}, environment=game)
    try:
        return asyncio.run(scorer.score(TASK, episodes))
    finally:
        scorer.close()


def test_the_reward_of_an_environment_adds_to_those_of_functions(tokenizer, tmp_path):
    last = "def compute_score(response, extra_info): return extra_info['answers'][-1] == 'cba'"
    episodes = [played(tokenizer, 0, 0.5, "a<|end|>", "cba<|end|>"), played(tokenizer, 1, float("nan"), "cba")]
    group = scored_games(tmp_path, [{"name": "last", "source": last, "weight": 2}], episodes)
    assert [each.reward for each in group.episodes] == [2.5, 2]
    swapped = scored_games(tmp_path, [{"name": "last", "source": last}], [replace(episodes[0], order=(1, 0))])
    assert swapped.episodes[0].reward == 0.5, "the other answer was the last one"
    assert [each.components for each in group.episodes] == [{"last": 1, "environment": 0.5}, {"last": 1}]


def test_a_job_without_rewards_and_environment_scores_0(tokenizer, tmp_path):
    with closing(Scorer(Rewards(), tmp_path, tmp_path, {})) as scorer:
        group = asyncio.run(scorer.score(TASK, [episode(tokenizer, 0, "a")]))
    assert [(each.reward, each.components) for each in group.episodes] == [(0, {})]


def test_without_functions_the_environment_has_to_reward(tokenizer, tmp_path):
    episodes = [played(tokenizer, 0, 0.5, "a"), played(tokenizer, 1, 1.0, "b")]
    assert [each.reward for each in scored_games(tmp_path, [], episodes).episodes] == [0.5, 1]
    none = replace(episodes[0], reward=float("nan"))
    with pytest.raises(RewardError, match="returned no reward for prompt 0/3/0"):
        scored_games(tmp_path, [], [none, episodes[1]])
    cut = replace(none, status="truncated")
    assert [each.reward for each in scored_games(tmp_path, [], [cut, episodes[1]]).episodes] == [0, 1]


def test_a_failed_episode_is_left_out_of_its_group_or_its_group_is(tokenizer, tmp_path):
    episodes = [played(tokenizer, 0, 0.5, "a"), played(tokenizer, 1, float("nan"), "b", failed=True)]
    group = scored_games(tmp_path, [EXACT], episodes)
    summary = summarise(group)
    assert (group.error, summary.rewards.tolist(), summary.failed, summary.made) == (None, [0.5], 1, 2)
    assert summary.owners == (0,)
    reason = "1 of 2 episodes failed, such as 0/3/0/1: crashed"
    assert scored_games(tmp_path, [EXACT], episodes, on_error="drop_group").error == reason
    assert "2 of 2" in (scored_games(tmp_path, [EXACT], [replace(episodes[1], sample=i) for i in (0, 1)]).error or "")
    overflowed = [episodes[0], replace(episodes[1], status="truncated")]
    assert scored_games(tmp_path, [EXACT], overflowed, on_error="drop_group", on_overflow="drop").error is None
    alone = scored_games(tmp_path, [EXACT], overflowed[1:], on_overflow="drop").error
    assert alone == "1 of 1 episodes are left out, such as 0/3/0/1: crashed"
    masked = [played(tokenizer, 0, 0.5, "a", masked=True)]
    assert scored_games(tmp_path, [EXACT], masked).error == "no episode has tokens to train on"
