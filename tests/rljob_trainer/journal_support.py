"""Groups, scores and keys for the journal's tests."""

from dataclasses import replace

import numpy as np

from rljob_trainer.journal import GroupKey, Journal
from rljob_trainer.old_types import Group, GroupScore, GroupSummary, Prompt, Sample

KEY = GroupKey(attempt=1, step=7, policy_digest="policy", fingerprint="settings")


def prompt(number=0, length=3):
    return Prompt(f"0/{number}", np.arange(number, number + length, dtype=np.int32), "test", "truth", {}, "text")


def group(number=0, lengths=(2, 0, 5), version=6):
    draw = np.random.default_rng(number)
    samples = [
        Sample(
            f"0/{number}",
            index,
            draw.integers(0, 50_000, length).astype(np.int32),
            -draw.exponential(size=length).astype(np.float32),
            "length" if index % 2 else "stop",
        )
        for index, length in enumerate(lengths)
    ]
    return Group(prompt(number), tuple(samples), version)


def score_of(group, error=None):
    rewards = np.linspace(0, 1, len(group.samples), dtype=np.float32)
    if error:
        return GroupScore(group.prompt.id, np.full(len(rewards), np.nan, dtype=np.float32), error=error)
    return GroupScore(group.prompt.id, rewards, {"exact": rewards[::-1].copy(), "exact/é": -rewards})


def key(**changes):
    return replace(KEY, **changes)


def find(journal: Journal, key: GroupKey, prompt: Prompt) -> tuple[Group, GroupSummary]:
    found = journal.find(key, prompt)
    assert found is not None
    return found


def assert_same_group(found, group, score):
    """Bit for bit, types included."""
    assert (found[0].prompt.id, found[0].policy_version) == (group.prompt.id, group.policy_version)
    assert found[0].prompt.token_ids.tolist() == group.prompt.token_ids.tolist()
    assert len(found[0].samples) == len(group.samples)
    for ours, theirs in zip(found[0].samples, group.samples, strict=True):
        assert (ours.prompt_id, ours.sample_index, ours.finish_reason) == (
            theirs.prompt_id,
            theirs.sample_index,
            theirs.finish_reason,
        )
        assert_same_array(ours.token_ids, theirs.token_ids)
        assert_same_array(ours.log_probs, theirs.log_probs)
    assert found[1].error == score.error
    assert_same_array(found[1].rewards, score.rewards)
    assert list(found[1].components) == list(score.components)
    for name, values in score.components.items():
        assert_same_array(found[1].components[name], values)


def assert_same_array(ours, theirs):
    assert ours.dtype == theirs.dtype
    assert ours.tobytes() == theirs.tobytes()
    assert ours.flags.writeable
