"""A group of samples in, its summary out."""

import subprocess
import sys

import numpy as np
import pytest

from rljob_api.v1alpha1 import Rewards
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.errors import RewardError
from rljob_trainer.rewards.worker import RewardWorker
from rljob_trainer.types import Group, Prompt, Sample


@pytest.fixture
def tokenizer(tmp_path):
    from rljob_trainer.data.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(TokenizerSpec(), ["abc"])
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tokenizer


def sample(tokenizer, index, text, reason="stop"):
    ids = np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
    return Sample("0/3", index, ids, np.zeros(len(ids), dtype=np.float32), reason)


def test_samples_are_decoded_without_special_tokens_scored_and_summarised(tokenizer, tmp_path):
    functions = [
        {"name": "exact", "builtin": "exact_match"},
        {"name": "length", "builtin": "length_penalty", "arguments": {"max_tokens": 4, "buffer_tokens": 2}},
    ]
    worker = RewardWorker(
        Rewards.model_validate({"functions": functions, "processes": 1}), tmp_path / "tokenizer", tmp_path
    )
    prompt = Prompt("0/3", np.arange(5, dtype=np.int32), "test", "cba", {}, "abc")
    texts = [("cba<|end|>", "stop"), ("ccc", "length"), ("ab<|end|>", "stop")]
    group = Group(prompt, tuple(sample(tokenizer, i, *text) for i, text in enumerate(texts)), policy_version=4)
    try:
        summary = worker.score(group)
    finally:
        worker.close()
    assert (summary.prompt_id, summary.policy_version, summary.prompt_tokens) == ("0/3", 4, 5)
    assert summary.response_tokens == (4, 3, 3)
    assert summary.truncated == (False, True, False)
    assert summary.score.components["exact"].tolist() == [1, 0, 0]
    assert summary.score.components["length"].tolist() == [-1, -0.5, -0.5]
    assert summary.score.rewards.tolist() == [0, -0.5, -0.5]


def test_wrong_reward_code_is_refused_when_the_worker_is_made(tokenizer, tmp_path):
    rewards = Rewards.model_validate({"functions": [{"name": "own", "source": "def ("}]})
    with pytest.raises(RewardError, match="line 1: invalid syntax"):
        RewardWorker(rewards, tmp_path / "tokenizer", tmp_path)


def test_the_hosting_process_needs_no_torch():
    program = "import sys, rljob_trainer.rewards.worker; print({'torch', 'transformers', 'ray'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
