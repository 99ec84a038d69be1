"""A group of samples in, its summary out."""

import errno
import itertools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from rljob_trainer.rewards.reward_worker import RewardWorker

from rljob_api.v1alpha1 import Rewards
from rljob_api.v1alpha1.model import Tokenizer as TokenizerSpec
from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.journal import GroupKey, Journal
from rljob_trainer.journal.summary import summarise
from rljob_trainer.old_types import Group, Prompt, Sample
from rljob_trainer.rewards.scorer import GroupScorer
from rljob_trainer.volume import Volume
from tests.rljob_trainer.journal_support import find


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
        Rewards.model_validate({"functions": functions, "processes": 1}), tmp_path / "tokenizer", tmp_path, {}
    )
    prompt = Prompt("0/3", np.arange(5, dtype=np.int32), "test", "cba", {}, "abc")
    texts = [("cba<|end|>", "stop"), ("ccc", "length"), ("ab<|end|>", "stop")]
    group = Group(prompt, tuple(sample(tokenizer, i, *text) for i, text in enumerate(texts)), policy_version=4)
    try:
        summary = next(worker.score([group]))
    finally:
        worker.close()
    assert (summary.prompt_id, summary.policy_version, summary.prompt_tokens) == ("0/3", 4, 5)
    assert summary.response_tokens == (4, 3, 3)
    assert summary.truncated == (False, True, False)
    assert summary.score.components["exact"].tolist() == [1, 0, 0]
    assert summary.score.components["length"].tolist() == [-1, -0.5, -0.5]
    assert summary.score.rewards.tolist() == [0, -0.5, -0.5]
    assert summary.digest == summarise(group, summary.score).digest


def scorer_of(tmp_path, functions, on_error="fail"):
    rewards = Rewards.model_validate({"functions": functions, "processes": 1, "onError": on_error})
    made = GroupScorer(rewards, str(tmp_path / "tokenizer"), str(tmp_path), {}, str(tmp_path / "log"), str(tmp_path))
    made.start()
    return made


def test_the_scorer_journals_what_it_scored_for_each_attempt_before_it_answers(tokenizer, tmp_path):
    prompt = Prompt("0/3", np.arange(5, dtype=np.int32), "test", "abc", {}, "abc")
    group = Group(prompt, (sample(tokenizer, 0, "abc"), sample(tokenizer, 1, "a", "length")), policy_version=4)
    volume, scorer = Volume(tmp_path), scorer_of(tmp_path, [{"name": "exact", "builtin": "exact_match"}])
    try:
        for attempt in (1, 2):
            key = GroupKey(attempt, 5, f"policy {attempt}", "settings")
            summary = scorer.score([group], key)[0]
            found, found_summary = find(Journal.read(volume, attempt, after_step=4), key, prompt)
            assert found_summary.digest == summary.digest
            assert found_summary.score.rewards.tolist() == [1, 0]
            assert found_summary.truncated == (False, True)
            assert found.samples[0].token_ids.tolist() == group.samples[0].token_ids.tolist()
        scorer.score([Group(prompt, group.samples, policy_version=5)])  # of a validation
        assert len(Journal.read(volume, 2, after_step=0)) == 2
    finally:
        scorer.close()


def test_a_journal_that_failed_for_one_driver_is_opened_anew_for_the_next(tokenizer, tmp_path, monkeypatch):
    prompt = Prompt("0/3", np.arange(5, dtype=np.int32), "test", "abc", {}, "abc")
    group = Group(prompt, (sample(tokenizer, 0, "abc"),), policy_version=4)
    scorer, fsync = scorer_of(tmp_path, [{"name": "exact", "builtin": "exact_match"}]), os.fsync
    failed = threading.Event()

    def fail_once(descriptor):
        monkeypatch.setattr(os, "fsync", fsync)
        failed.set()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail_once)
    try:
        scorer.score([group], GroupKey(1, 5, "policy", "settings"))
        assert failed.wait(60)
        with pytest.raises(InfrastructureError, match="cannot write the rollout journal"):
            [scorer.score([group], GroupKey(1, step, "policy", "settings")) for step in itertools.count(6)]
        scorer.start()
        scorer.score([group], GroupKey(2, 5, "policy", "settings"))
    finally:
        scorer.close()
    assert find(Journal.read(Volume(tmp_path), 2, after_step=4), GroupKey(2, 5, "policy", "settings"), prompt)


def test_a_dropped_group_is_journaled_too_and_a_failed_one_is_not(tokenizer, tmp_path):
    prompt = Prompt("0/3", np.arange(5, dtype=np.int32), "test", "abc", {}, "abc")
    group = Group(prompt, (sample(tokenizer, 0, "abc"),), policy_version=4)
    source = "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return float('nan')"
    functions, volume = [{"name": "own", "source": source}], Volume(tmp_path)
    strict, lenient = scorer_of(tmp_path, functions), scorer_of(tmp_path, functions, "drop_group")
    try:
        with pytest.raises(RewardError, match="returned nan"):
            strict.score([group], GroupKey(1, 5, "policy", "strict"))
        lenient.score([group], GroupKey(1, 5, "policy", "lenient"))
    finally:
        strict.close()
        lenient.close()
    journal = Journal.read(volume, 1, after_step=4)
    assert len(journal) == 1
    score = find(journal, GroupKey(1, 5, "policy", "lenient"), prompt)[1].score
    assert np.isnan(score.rewards).all()
    assert score.error is not None
    assert "returned nan" in score.error


def test_wrong_reward_code_is_refused_when_the_worker_is_made(tokenizer, tmp_path):
    rewards = Rewards.model_validate({"functions": [{"name": "own", "source": "def ("}]})
    with pytest.raises(RewardError, match="line 1: invalid syntax"):
        RewardWorker(rewards, tmp_path / "tokenizer", tmp_path, {})


def test_the_hosting_process_needs_no_torch():
    program = (
        "import sys, rljob_trainer.rewards.reward_worker; print({'torch', 'transformers', 'ray'} & set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
