"""The episodes of a group in, the group with its rewards out."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rljob_api.v1alpha1 import Rewards
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.data.tokenizer import build_tokenizer
from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.scorer import Scorer, _decoder
from rljob_trainer.types import Episode, Trajectory, Turn
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
    part = Trajectory(
        np.array(ids, np.int32), np.zeros(T, np.bool_), np.zeros(T, np.float32), np.full(T, 7, np.int32), tuple(turns)
    )
    return Episode(TASK.id, sample, (part,))


def scored(folder, functions, episodes, **rewards):
    scorer = Scorer(Rewards.model_validate({"functions": functions, "processes": 1, **rewards}), folder, folder, {})
    try:
        return asyncio.run(scorer.score(TASK, episodes))
    finally:
        scorer.close()


def test_answers_are_decoded_without_special_tokens_and_scored_by_all_rewards(tokenizer, tmp_path):
    given = [("cba<|end|>", "stop"), ("ccc", "length"), ("ab<|end|>", "stop")]
    episodes = [episode(tokenizer, i, text, reason=reason) for i, (text, reason) in enumerate(given)]
    group = scored(tmp_path, [EXACT, LENGTH], episodes)
    assert (group.task, group.error, group.retries) == (TASK, None, 0)
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


def test_a_response_without_a_reward_ends_the_job_or_drops_its_group(tokenizer, tmp_path):
    functions, episodes = [EXACT, {"name": "own", "source": NAN}], [episode(tokenizer, 0, "abc")]
    with pytest.raises(RewardError, match="returned nan"):
        scored(tmp_path, functions, episodes)
    group = scored(tmp_path, functions, episodes, onError="drop_group")
    assert np.isnan(group.episodes[0].reward)
    assert group.error is not None
    assert "reward own returned nan, for prompt 0/3/0, sample 0" in group.error


def test_wrong_reward_code_is_refused_when_the_scorer_is_made(tokenizer, tmp_path):
    with pytest.raises(RewardError, match="line 1: invalid syntax"):
        scored(tmp_path, [{"name": "own", "source": "def ("}], [])


def test_the_hosting_process_needs_no_torch():
    program = "import sys, rljob_trainer.rewards.scorer; print({'torch', 'transformers', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


PYTHON_TOKENIZER = """
from transformers import PreTrainedTokenizer


class Own(PreTrainedTokenizer):
    def get_vocab(self): return {chr(i): i for i in range(128)}
    def _tokenize(self, text): return list(text)
    def _convert_token_to_id(self, token): return ord(token)
    def _convert_id_to_token(self, index): return chr(index)
    def convert_tokens_to_string(self, tokens): return "".join(tokens)
    vocab_size = 128
"""


def test_a_tokenizer_of_python_code_decodes_if_it_is_trusted(tmp_path):
    (tmp_path / "tokenization_own.py").write_text(PYTHON_TOKENIZER)
    config = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert _decoder(tmp_path, trust_remote_code=True)([104, 105]) == "hi"
    with pytest.raises(ValueError, match="trust_remote_code"):
        _decoder(tmp_path, trust_remote_code=False)
