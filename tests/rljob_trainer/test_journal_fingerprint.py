"""Digests and fingerprints change with what they stand for, and with nothing else."""

import hashlib
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api import resolve
from rljob_api.v1alpha1.rljob import RLJobSpec
from rljob_trainer.journal import (
    first_digest,
    next_digest,
    rollout_fingerprint,
    step_fingerprint,
    update_fingerprint,
)
from rljob_trainer.journal.summary import group_digest, summarise
from rljob_trainer.types import Episode, Group, Taught, answered
from tests.rljob_trainer.journal_support import agents_episode, episode, group, task

# ---- groups


def with_trajectory(made, sample, **changes):
    episodes = list(made.episodes)
    (part,) = episodes[sample].trajectories
    episodes[sample] = replace(episodes[sample], trajectories=(replace(part, **changes),))
    return replace(made, episodes=tuple(episodes))


def with_episode(made, **changes):
    return replace(made, episodes=(replace(made.episodes[0], **changes), *made.episodes[1:]))


def plus(values, where=0, amount=1):
    changed = values.copy()
    changed[where] += amount
    return changed


def said_of(token):
    return Taught(np.zeros((4, 1), np.float32), np.full((4, 1), token, np.int32))


MADE = group(3)
PART = MADE.episodes[1].trajectories[0]
CHANGES = {
    "prompt": replace(MADE, task=replace(MADE.task, token_ids=plus(MADE.task.token_ids))),
    "longer prompt": replace(MADE, task=task(3, length=4)),
    "token": with_trajectory(MADE, 1, token_ids=plus(PART.token_ids, 3)),
    "log-probability": with_trajectory(MADE, 1, log_probs=np.nextafter(PART.log_probs, np.float32(1))),
    "version": with_trajectory(MADE, 1, versions=plus(PART.versions, 4)),
    "what is in the loss": with_trajectory(MADE, 1, in_loss=PART.in_loss & (np.arange(7) < 6)),
    "temperature": with_trajectory(MADE, 1, turns=(PART.turns[0]._replace(temperature=0.9),)),
    "finish reason": with_trajectory(MADE, 1, turns=(PART.turns[0]._replace(finish_reason="length"),)),
    "image": with_trajectory(MADE, 1, media=("digest",)),
    "teacher": with_trajectory(MADE, 1, taught=Taught(np.zeros(4, np.float32))),
    "what the teacher said": with_trajectory(MADE, 1, taught=Taught(np.ones(4, np.float32))),
    "what it said of another token": with_trajectory(MADE, 1, taught=said_of(1)),
    "of which token it said so": with_trajectory(MADE, 1, taught=said_of(2)),
    "reward": with_episode(MADE, reward=1e-6),
    "dropped": with_episode(MADE, reward=float("nan")),
    "rewards of turns": with_episode(MADE, turn_rewards=np.zeros(1, np.float32)),
    "order of turns": with_episode(MADE, order=(0,)),
    "order": replace(MADE, episodes=MADE.episodes[::-1]),
    "one episode less": replace(MADE, episodes=MADE.episodes[:1]),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_groups_digest_depends_on_all_that_an_update_reads(what):
    assert group_digest(CHANGES[what]) != group_digest(MADE)


def test_a_groups_digest_depends_on_nothing_that_is_only_logged():
    logged = with_episode(MADE, components={}, counts={"calls": 2.0})
    assert group_digest(replace(logged, task=replace(MADE.task, data_source="x"))) == group_digest(MADE)


def test_a_summary_says_whose_each_trajectory_is():
    made = Group(task(3), (episode(3), agents_episode(3, 1)))
    summary = summarise(made)
    assert (summary.task_id, summary.prompt_tokens) == ("0/3/0", 3)
    assert (summary.owners, summary.tokens, summary.loss_tokens) == ((0, 1, 1), (7, 8, 3), (4, 3, 1))
    assert (summary.truncated, summary.oldest_version, summary.age(8)) == ((False, False), 6, 2)
    assert summary.rewards.tolist() == [0, -0.25]
    assert summary.components["exact"].tolist() == [1, 0]
    assert np.isnan(summary.components["exact/é"]).tolist() == [False, True]
    assert summary.digest == group_digest(made)


def hash_of(*parts):
    """The definition written out: each part after its length in 8 bytes."""
    return hashlib.blake2b(b"".join(struct.pack("<Q", len(part)) + part for part in parts), digest_size=16).hexdigest()


def test_digests_are_the_same_in_every_process_and_version():
    """A change here makes the journals of running jobs useless."""
    first = first_digest("uid", "nonce", "settings", 0)
    assert first == hash_of(b"first", b"uid", b"nonce", b"settings", b"0") == "8de92d2c71f269881dd2717ff79a3183"
    assert next_digest(first, "settings", ["a", "b"]) == hash_of(b"next", first.encode(), b"settings", b"a", b"b")
    part = answered(np.array([3, 4]), np.array([7]), np.array([-1]), 1, 1.0, "stop")
    made = Group(task(3, length=2), (Episode("0/3/0", 0, (part,), reward=0.5),))
    parts = [hash_of(struct.pack("<2i", 3, 4)).encode(), struct.pack("<f", 0.5), struct.pack("<3i", 3, 4, 7)]
    parts += [b"\0\0\1", struct.pack("<3f", 0, 0, -1), struct.pack("<3i", -1, -1, 1), b"((2, 3, 1.0, 'stop'),)"]
    assert group_digest(made) == hash_of(*parts)


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
    "rollout__quantization": "fp8",
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
    "algorithm__kl": {"refreshEvery": 3},
    "training__steps": 11,
    "training__onBadGradient": {"spikeFactor": 9},
    "model__dtype": "float32",
}
NEITHER = {
    "rollout__maxNumSeqs": 8,
    "rollout__gpuMemoryUtilization": 0.4,
    "rollout__enginesPerGpu": 2,
    "rollout__deadline": "1h",
    "rollout__weightSync": {"bucketMib": 8},
    "rollout__validation": {"samplesPerPrompt": 4},
    "rewards__processes": 9,
    "actor__tokensPerMicroBatch": 8192,
    "actor__recompute": "none",
    "actor__compile": True,
    "actor__fsdp": {"offload": "all"},
    "checkpoint": {"keepLast": 9},
    "training__validateEvery": 0,
    "training__onBadGradient__maxSkips": 9,
    "cluster": {"nodes": 2},
}


@pytest.mark.parametrize(("path", "value"), {**ROLLOUT, **UPDATE, **NEITHER}.items())
def test_each_fingerprint_changes_with_its_own_fields_alone(tmp_path, path, value):
    old, new = spec_of(), spec_of(**{path: value})
    assert (rollout_fingerprint(old, tmp_path) != rollout_fingerprint(new, tmp_path)) == (path in ROLLOUT)
    assert (update_fingerprint(old, tmp_path) != update_fingerprint(new, tmp_path)) == (path in UPDATE)
    assert (step_of(old, tmp_path) != step_of(new, tmp_path)) == (path not in NEITHER)


def test_the_answers_of_a_teachers_server_are_part_of_the_rollout(tmp_path):
    def prints(**fields):
        server = {"url": "http://a", "model": "m", **fields}
        spec = spec_of(algorithm={"preset": "distillation", "teacher": {"server": server}})
        return rollout_fingerprint(spec, tmp_path), update_fingerprint(spec, tmp_path)

    other, faster = prints(model="n"), prints(timeout="1s", lostAfter="2s", concurrency=2)
    assert prints() == faster
    assert other[0] != prints()[0]
    assert rollout_fingerprint(spec_of(), tmp_path) != prints()[0]


def step_of(spec, folder):
    return step_fingerprint(spec, update_fingerprint(spec, folder), rollout_fingerprint(spec, folder))


def test_what_a_step_uses_depends_on_how_many_groups_it_takes(tmp_path):
    assert step_of(spec_of(data__promptsPerStep=64), tmp_path) != step_of(spec_of(), tmp_path)


def test_more_steps_change_no_update_whose_learning_rate_is_constant():
    few, many = (spec_of(actor__lrSchedule="constant", training__steps=steps) for steps in (10, 11))
    assert update_fingerprint(few, Path()) == update_fingerprint(many, Path())


@pytest.mark.parametrize("field", ["advantageFrom", "lossFrom"])
@pytest.mark.parametrize(("source", "file"), [({"path": "mine.py"}, "mine.py"), ({"module": "a.mine"}, "a/mine.py")])
def test_the_content_of_an_own_advantage_or_loss_counts_in_updates(tmp_path, field, source, file):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("1")
    spec = spec_of(**{f"algorithm__{field}": source})
    before = update_fingerprint(spec, tmp_path), rollout_fingerprint(spec, tmp_path)
    path.write_text("2")
    after = update_fingerprint(spec, tmp_path), rollout_fingerprint(spec, tmp_path)
    assert before[0] != after[0]
    assert before[1] == after[1]


@pytest.mark.parametrize("file", ["reward.py", "package/mine.py", "package/mine/__init__.py"])
def test_the_content_of_reward_files_counts(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    seen = [rollout_fingerprint(spec_of(), tmp_path)]
    for content in ("a = 1", "a = 2"):
        path.write_text(content)
        seen.append(rollout_fingerprint(spec_of(), tmp_path))
    assert len(set(seen)) == 3


@pytest.mark.parametrize(
    "environment",
    [
        {"path": "game.py"},
        {"command": ["python", "game.py"]},
        {"mcpServers": [{"name": "game", "command": ["python", "game.py"]}]},
        {"builtinTools": [{"name": "search", "corpus": "game.py"}]},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_the_content_of_an_environments_files_counts(tmp_path, environment):
    spec = spec_of(environment=environment)
    seen = [rollout_fingerprint(spec_of(), tmp_path), rollout_fingerprint(spec, tmp_path)]
    for content in ("a = 1", "a = 2"):
        (tmp_path / "game.py").write_text(content)
        seen.append(rollout_fingerprint(spec, tmp_path))
    assert len(set(seen)) == 4
