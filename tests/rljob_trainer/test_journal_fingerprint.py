"""Digests and fingerprints change with what they stand for, and with nothing else."""

import hashlib
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rljob_api import resolve
from rljob_api.v1alpha1.rljob import RLJobSpec
from rljob_trainer.journal import first_digest, next_digest, rollout_fingerprint, update_fingerprint
from rljob_trainer.journal.summary import group_digest, summarise
from rljob_trainer.old_types import Group, GroupScore, Sample
from tests.rljob_trainer.journal_support import group, prompt, score_of

# ---- groups


def with_sample(made, index, **changes):
    samples = list(made.samples)
    samples[index] = replace(samples[index], **changes)
    return replace(made, samples=tuple(samples))


def plus(values, where=0, amount=1):
    changed = values.copy()
    changed[where] += amount
    return changed


MADE = group(3, lengths=(2, 4))
CHANGES = {
    "prompt": replace(MADE, prompt=replace(MADE.prompt, token_ids=plus(MADE.prompt.token_ids))),
    "longer prompt": replace(MADE, prompt=prompt(3, length=4)),
    "token": with_sample(MADE, 1, token_ids=plus(MADE.samples[1].token_ids, 3)),
    "log-probability": with_sample(
        MADE, 1, log_probs=np.nextafter(MADE.samples[1].log_probs, np.float32(0), dtype=np.float32)
    ),
    "finish reason": with_sample(MADE, 0, finish_reason="length"),
    "order": replace(MADE, samples=MADE.samples[::-1]),
    "one sample less": replace(MADE, samples=MADE.samples[:1]),
    "where one sample ends": group(3, lengths=(3, 3)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_groups_digest_depends_on_all_that_an_update_reads(what):
    assert group_digest(CHANGES[what], score_of(MADE)) != group_digest(MADE, score_of(MADE))


def test_a_groups_digest_depends_on_its_rewards_and_not_on_what_is_only_logged():
    score = score_of(MADE)
    digest = summarise(MADE, score).digest
    assert summarise(MADE, replace(score, rewards=plus(score.rewards, 1, 1e-6))).digest != digest
    assert summarise(MADE, score_of(MADE, "dropped")).digest != digest
    assert summarise(MADE, GroupScore(score.prompt_id, score.rewards.copy(), retries=2)).digest == digest
    assert summarise(replace(MADE, prompt=replace(MADE.prompt, text="other")), score).digest == digest


def hash_of(*parts):
    """The definition written out: each part after its length in 8 bytes."""
    return hashlib.blake2b(b"".join(struct.pack("<Q", len(part)) + part for part in parts), digest_size=16).hexdigest()


def test_digests_are_the_same_in_every_process_and_version():
    """A change here makes the journals of running jobs useless."""
    first = first_digest("uid", "nonce", "settings", 0)
    assert first == hash_of(b"first", b"uid", b"nonce", b"settings", b"0") == "8de92d2c71f269881dd2717ff79a3183"
    assert next_digest(first, "settings", ["a", "b"]) == hash_of(b"next", first.encode(), b"settings", b"a", b"b")
    made = Group(
        prompt(3, length=2), (Sample("0/3", 0, np.array([7], np.int32), np.array([-1], np.float32), "stop"),), 1
    )
    parts = (hash_of(struct.pack("<2i", 3, 4)).encode(), struct.pack("<f", 0.5))
    expected = hash_of(*parts, struct.pack("<i", 7), struct.pack("<f", -1), b"stop")
    assert group_digest(made, GroupScore("0/3", np.array([0.5], dtype=np.float32))) == expected


# ---- the chain


def test_the_chain_depends_on_the_run_the_settings_and_the_groups_in_order():
    first = first_digest("uid", "nonce", "s", 0)
    digests = [
        first,
        first_digest("uid", "other", "s", 0),
        first_digest("other", "nonce", "s", 0),
        first_digest("uid", "nonce", "t", 0),
        first_digest("uid", "nonce", "s", 1),
        next_digest(first, "s", ["a", "b"]),
        next_digest(first, "t", ["a", "b"]),
        next_digest(first, "s", ["b", "a"]),
        next_digest(first, "s", ["ab"]),
        next_digest(first, "s", ["a"]),
        next_digest(first, "s", []),
        next_digest(next_digest(first, "s", ["a"]), "s", ["b"]),
    ]
    assert len(set(digests)) == len(digests)


# ---- fingerprints


def spec_of(**changes):
    """A resolved spec; keys are paths such as rollout__topK."""
    spec: dict[str, Any] = {
        "model": {"path": "org/name"},
        "data": {"train": ["a.parquet"]},
        "rewards": {"functions": [{"name": "own", "path": "reward.py"}, {"name": "beside", "module": "package.mine"}]},
        "training": {"steps": 10},
        "actor": {"lrSchedule": "linear"},
    }
    for path, value in changes.items():
        *blocks, last = path.split("__")
        place = spec
        for block in blocks:
            place = place.setdefault(block, {})
        place[last] = value
    return resolve(RLJobSpec.model_validate(spec))


ROLLOUT = {
    "rollout__engine": "hf",
    "rollout__samplesPerPrompt": 16,
    "rollout__temperature": 0.9,
    "rollout__topP": 0.9,
    "rollout__topK": 20,
    "rollout__stop": ["\n"],
    "rollout__seed": 1,
    "data__maxResponseTokens": 99,
    "rewards__timeout": "31s",
    "rewards__onError": "drop_group",
    "rewards__functions": [{"name": "own", "path": "reward.py", "weight": 2}],
    "model__dtype": "float32",
}
UPDATE = {
    "actor__learningRate": 2e-6,
    "actor__miniBatchSize": 64,
    "actor__epochs": 2,
    "algorithm__preset": "dapo",
    "algorithm__clipRatio": 0.3,
    "sft": {"steps": 3},
    "training__steps": 11,
    "model__dtype": "float32",
}
NEITHER = {
    "rollout__maxNumSeqs": 8,
    "rollout__gpuMemoryUtilization": 0.4,
    "rollout__deadline": "1h",
    "rollout__weightSync": {"bucketMib": 8},
    "rollout__validation": {"samplesPerPrompt": 4},
    "rewards__processes": 9,
    "actor__tokensPerMicroBatch": 8192,
    "actor__gradientCheckpointing": False,
    "actor__fsdp": {"offload": True},
    "checkpoint": {"keepLast": 9},
    "training__validateEvery": 0,
    "cluster": {"nodes": 2},
}


@pytest.mark.parametrize(("path", "value"), {**ROLLOUT, **UPDATE, **NEITHER}.items())
def test_each_fingerprint_changes_with_its_own_fields_alone(tmp_path, path, value):
    old, new = spec_of(), spec_of(**{path: value})
    assert (rollout_fingerprint(old, tmp_path) != rollout_fingerprint(new, tmp_path)) == (path in ROLLOUT)
    assert (update_fingerprint(old) != update_fingerprint(new)) == (path in UPDATE)


def test_more_steps_change_no_update_whose_learning_rate_is_constant():
    few, many = (spec_of(actor__lrSchedule="constant", training__steps=steps) for steps in (10, 11))
    assert update_fingerprint(few) == update_fingerprint(many)


@pytest.mark.parametrize("file", ["reward.py", "package/mine.py", "package/mine/__init__.py"])
def test_the_content_of_reward_files_counts(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    seen = [rollout_fingerprint(spec_of(), tmp_path)]
    for content in ("a = 1", "a = 2"):
        path.write_text(content)
        seen.append(rollout_fingerprint(spec_of(), tmp_path))
    assert len(set(seen)) == 3
