"""Tasks, episodes, groups and records for tests of rollouts and of the journal."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rljob_trainer.journal import Journal, JournalWriter, Made, Used
from rljob_trainer.journal.record import encode_made, encode_used, made_key
from rljob_trainer.journal.summary import summarise
from rljob_trainer.rollouts.calls import GroupRef
from rljob_trainer.types import NOT_SAMPLED, Episode, FinishReason, Group, Task, Taught, Trajectory, Turn, answered
from rljob_trainer.volume import Volume

FINGERPRINT = "settings"
VERSION = 7
POLICIES = {6: "policy 6", 7: "policy 7"}


def task(number: int = 0, length: int = 3) -> Task:
    token_ids = np.arange(number, number + length, dtype=np.int32)
    return Task(f"0/{number}/0", [{"role": "user", "content": "text"}], token_ids, "truth", {"a": 1}, "test")


def episode(
    number: int = 0, sample: int = 0, length: int = 4, version: int = VERSION, reason: FinishReason = "stop"
) -> Episode:
    """One turn, as almost every episode has."""
    draw = np.random.default_rng([number, sample])
    ids = draw.integers(0, 50_000, length).astype(np.int32)
    log_probs = -draw.exponential(size=length).astype(np.float32)
    one = answered(task(number).token_ids, ids, log_probs, version, 1.0, reason)
    return Episode(f"0/{number}/0", sample, (one,), reward=sample / 3, components={"exact": 1.0, "exact/é": -0.1})


def agents_episode(number: int = 0, sample: int = 0) -> Episode:
    """Two turns with a tool's result between them, sampled by two policies; then a rewritten context with an image."""
    P = 3
    in_loss = np.array([0, 0, 0, 1, 1, 0, 1, 0], np.bool_)  # the last token is sampled, and not in the loss
    versions = np.array([-1, -1, -1, 6, 6, -1, 7, 7], np.int32)
    turns = (Turn(P, P + 2, 0.7, "stop"), Turn(P + 3, P + 5, 0.0, "length"))
    log_probs = np.where(versions == NOT_SAMPLED, 0, -np.arange(8) / 3).astype(np.float32)
    token_ids = np.concatenate([task(number).token_ids, np.arange(5)]).astype(np.int32)
    first = Trajectory(token_ids, in_loss, log_probs, versions, turns)
    rewritten = np.array([9, 9], np.int32)
    second = answered(rewritten, np.array([8], np.int32), np.array([-0.5], np.float32), 7, 0.7, "stop")
    return Episode(
        f"0/{number}/0", sample, (first, replace(second, media=("a digest",))), "environment_failed", -0.25,
        {"exact": 0.0}, np.array([0.5, -1, 0.1], np.float32), {"tool_calls": 1.0},
        order=(0, 2, 1),
    )  # fmt: skip


def taught(one: Episode, top_k: int = 0) -> Episode:
    """With what a teacher's server said of it: of each token, or of `top_k` others."""
    draw = np.random.default_rng(5)
    shapes = [(part.loss_tokens, top_k) if top_k else (part.loss_tokens,) for part in one.trajectories]
    ids = [draw.integers(0, 50_000, shape).astype(np.int32) if top_k else None for shape in shapes]
    values = [-draw.exponential(size=shape).astype(np.float32) for shape in shapes]
    said = [Taught(*each) for each in zip(values, ids, strict=True)]
    parts = tuple(replace(part, taught=each) for part, each in zip(one.trajectories, said, strict=True))
    return replace(one, trajectories=parts)


def group(number: int = 0, samples: int = 2, **changes: Any) -> Group:
    """changes: arguments of `episode`."""
    return Group(task(number), tuple(episode(number, sample, **changes) for sample in range(samples)))


def group_ref(made: Group, bundle: Any = None) -> GroupRef:
    return GroupRef(bundle, 0, summarise(made))


def used_by(groups: Sequence[Group], **changes: Any) -> Used:
    names = tuple((each.task.id, summarise(each).digest) for each in groups)
    used = Used("policy 7", VERSION + 1, "step settings", names, {"0/99/0": "uninformative"}, {"epoch": 0}, {"a": 0.5})
    return replace(used, **changes)


def made_record(
    one: Episode, fingerprint: str = FINGERPRINT, policies: dict[int, str] = POLICIES, error: str | None = None
) -> bytes:
    """The record of an episode of `task`."""
    its_task = task(int(one.task_id.split("/")[1]))
    versions = {int(v) for part in one.trajectories for v in part.versions if v != NOT_SAMPLED}
    by = {version: policies[version] for version in sorted(versions)}
    return encode_made(Made(made_key(its_task, one.sample, fingerprint), by, one, error), its_task)


def write(volume: Volume, *records: Episode | Used | bytes, attempt: int = 1, version: int = VERSION) -> None:
    """Append each by itself."""
    with JournalWriter(volume) as writer:
        for record in records:
            writer.append([as_record(record)], attempt, version)


def as_record(record: Episode | Used | bytes) -> bytes:
    if isinstance(record, Episode):
        return made_record(record)
    return encode_used(record) if isinstance(record, Used) else record


def find(journal: Journal, number: int = 0, sample: int = 0, policies: dict[int, str] = POLICIES) -> Any:
    """The episode, or None."""
    found = journal.find(task(number), sample, FINGERPRINT, policies)
    return found.episode if found is not None else None


def read(volume: Volume, attempt: int = 1, from_version: int = 0) -> Journal:
    return Journal(volume, attempt, from_version)


def numbers_in(journal: Journal, count: int = 20) -> list[int]:
    """Of the episodes that it finds."""
    return [number for number in range(count) if find(journal, number)]


def assert_same_episode(found: Episode | None, expected: Episode) -> None:
    """Bit for bit, types included."""
    assert found is not None
    for name in ("task_id", "sample", "status", "components", "counts"):
        assert getattr(found, name) == getattr(expected, name)
    assert repr(found.reward) == repr(expected.reward)
    assert_same_array(found.turn_rewards, expected.turn_rewards)
    for ours, theirs in zip(found.trajectories, expected.trajectories, strict=True):
        assert (ours.turns, ours.media) == (theirs.turns, theirs.media)
        for name in ("token_ids", "in_loss", "log_probs", "versions"):
            assert_same_array(getattr(ours, name), getattr(theirs, name))
        assert (ours.taught is None) == (theirs.taught is None)
        if ours.taught is not None and theirs.taught is not None:
            assert_same_array(ours.taught.log_probs, theirs.taught.log_probs)
            assert_same_array(ours.taught.ids, theirs.taught.ids)
            assert ours.taught.log_probs.shape == theirs.taught.log_probs.shape


def assert_same_array(ours: Any, theirs: Any) -> None:
    if theirs is None:
        assert ours is None
        return
    assert ours.dtype == theirs.dtype
    assert ours.tobytes() == theirs.tobytes()
    assert ours.flags.writeable
