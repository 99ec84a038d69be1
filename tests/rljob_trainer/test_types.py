"""Trajectories, and groups that cross processes."""

import pickle

import numpy as np
import pytest

from rljob_trainer.types import NOT_SAMPLED, Episode, Group, Task, Trajectory, Turn, answered, supervised, text_of

TASK = Task("0/3/0", [{"role": "user", "content": "abc"}], np.arange(5, dtype=np.int32), 3, {"split": "train"}, "test")
TWO_TURNS = Trajectory(
    token_ids=np.array([5, 9, 2, 7, 1, 4, 8, 1], np.int32),
    in_loss=np.array([0, 0, 0, 1, 1, 0, 1, 1], np.bool_),
    log_probs=np.array([0, 0, 0, -0.1, -0.9, 0, -0.2, -0.3], np.float32),
    versions=np.array([-1, -1, -1, 4, 4, -1, 5, 5], np.int32),
    turns=(Turn(3, 5, 0.5, "stop"), Turn(6, 8, 0.0, "length")),
    media=("sha256:1",),
)


def test_a_trajectory_knows_its_prompt_its_loss_and_the_temperature_of_each_token():
    assert (TWO_TURNS.prompt_tokens, TWO_TURNS.loss_tokens, TWO_TURNS.truncated) == (3, 4, True)
    assert TWO_TURNS.temperatures().tolist() == [1, 1, 1, 0.5, 0.5, 1, 1, 1], "1 where the turn is greedy"
    nothing = supervised(np.arange(4, dtype=np.int32), [])
    assert (nothing.prompt_tokens, nothing.loss_tokens, nothing.truncated) == (4, 0, False)


def test_a_group_is_the_same_after_it_crossed_a_process():
    single = answered(TASK.token_ids, np.array([6, 7], np.int32), np.array([-1, -2], np.float32), 4, 1.0, "stop")
    episodes = (
        Episode(
            "0/3/0", 0, (TWO_TURNS, single), "truncated", 0.5, {"exact": 1.0}, np.ones(3, np.float32), {"calls": 1}
        ),
        Episode("0/3/0", 1, (single,), reward=1.0),
    )
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(Group(TASK, episodes), protocol=5, buffer_callback=buffers.append)
    assert len(buffers) <= 7, "four of all trajectories, the prompt's ids, the ends, the rewards of turns"
    group = pickle.loads(packed, buffers=buffers)
    assert (group.task.id, group.task.ground_truth, group.error) == ("0/3/0", 3, None)
    assert [each.oldest_version for each in group.episodes] == [4, 4]
    for before, after in zip(episodes, group.episodes, strict=True):
        assert (after.sample, after.status, after.reward) == (before.sample, before.status, before.reward)
        assert (after.components, after.counts) == (before.components, before.counts)
        for ours, theirs in zip(before.trajectories, after.trajectories, strict=True):
            assert (theirs.turns, theirs.media) == (ours.turns, ours.media)
            assert (theirs.taught is None) == (ours.taught is None)
            for name in ("token_ids", "in_loss", "log_probs", "versions"):
                assert getattr(theirs, name).dtype == getattr(ours, name).dtype
                np.testing.assert_array_equal(getattr(theirs, name), getattr(ours, name))
    assert NOT_SAMPLED in group.trajectories[0].versions


def test_a_group_without_episodes_crosses_too():
    assert pickle.loads(pickle.dumps(Group(TASK, (), "timed out"))).error == "timed out"


@pytest.mark.parametrize(
    ("content", "text"),
    [("a", "a"), (None, ""), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab")],
)
def test_the_text_of_a_message(content, text):
    assert text_of({"role": "user", "content": content}) == text
