"""The rollout journal: records are found again, for no other policy, and damage costs no more than it must."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from rljob_trainer.journal import JournalWriter, Made, truncate
from rljob_trainer.journal.record import decode_made, encode_made, made_key
from rljob_trainer.types import NOT_SAMPLED, Episode, Trajectory, Turn
from rljob_trainer.volume import Volume
from tests.rljob_trainer.journal_support import (
    FINGERPRINT,
    POLICIES,
    agents_episode,
    as_record,
    assert_same_episode,
    episode,
    find,
    group,
    made_record,
    numbers_in,
    read,
    task,
    taught,
    used_by,
    write,
)


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


# ---- what is found


@pytest.mark.parametrize("error", [None, "reward own returned nan, for prompt 0/3/0, sample 1"])
@pytest.mark.parametrize(
    "made",
    [
        episode(3, 1, reason="length"),
        episode(3, length=0),
        episode(3, length=300_000),
        agents_episode(3),
        taught(agents_episode(3)),
        taught(agents_episode(3), 4),
    ],
    ids=["one turn", "no answer", "long", "turns and trajectories", "taught", "top-k"],
)
def test_an_episode_comes_back_bit_for_bit(volume, made, error):
    made = replace(made, reward=float("nan")) if error else made
    write(volume, made_record(made, error=error))
    found = read(volume).find(task(3), made.sample, FINGERPRINT, POLICIES)
    assert found is not None
    assert found.error == error
    assert_same_episode(found.episode, made)


numbers = st.floats(width=32, allow_nan=False)


@st.composite
def trajectories(draw):
    kinds = draw(st.lists(st.sampled_from(["sampled", "given"]), max_size=4))
    T, turns, sampled = 3, [], np.zeros(20, np.bool_)
    for kind in kinds:
        length = draw(st.integers(0, 4))
        if kind == "sampled":
            turns.append(Turn(T, T + length, draw(numbers), draw(st.sampled_from(["stop", "length"]))))
            sampled[T : T + length] = True
        T += length
    ids = np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=T, max_size=T)), np.int32)
    if draw(st.booleans()):
        ids[:3] = task().token_ids
    log_probs = np.where(sampled[:T], draw(numbers), 0).astype(np.float32)
    versions = np.where(sampled[:T], draw(st.integers(0, 9)), NOT_SAMPLED).astype(np.int32)
    in_loss = sampled[:T] & draw(st.booleans())
    return Trajectory(ids, in_loss, log_probs, versions, tuple(turns), tuple(draw(st.lists(st.text(), max_size=2))))


@given(
    st.lists(trajectories(), max_size=3),
    numbers,
    st.dictionaries(st.text(), numbers, max_size=3),
    st.none() | st.lists(numbers, max_size=3).map(lambda values: np.array(values, np.float32)),
)
def test_any_episode_comes_back_bit_for_bit(parts, reward, components, turn_rewards):
    one = Episode("0/0/0", 2, tuple(parts), "timed_out", reward, components, turn_rewards, {"calls": 1.0})
    made = Made(made_key(task(), 2, FINGERPRINT), {3: "digest"}, one, None)
    found = decode_made(encode_made(made, task()), task())
    assert (found.key, found.policies, found.error) == (made.key, made.policies, None)
    assert_same_episode(found.episode, one)


def test_an_episode_is_found_only_for_its_policies_settings_and_prompt(volume):
    write(volume, episode(3), agents_episode(4))
    journal = read(volume)
    assert find(journal, 3, policies={7: "policy 7"})
    assert find(journal, 3, sample=1) is None
    assert find(journal, 4)
    for allowed in ({7: "policy 7"}, {6: "policy 6", 7: "other"}, {}):
        assert find(journal, 4, policies=allowed) is None, "each of its policies must be allowed"
    assert journal.find(task(3), 0, "other settings", POLICIES) is None
    assert journal.find(task(3, length=4), 0, FINGERPRINT, POLICIES) is None, "the data changed under the id"
    assert journal.find(task(3).again(), 0, FINGERPRINT, POLICIES) is None


def test_two_attempts_may_make_the_same_episode_with_different_policies(volume):
    old, new = {7: "old"}, {7: "new"}
    write(volume, made_record(episode(3, length=1), policies=old), attempt=1)
    write(volume, made_record(episode(3, length=2), policies=new), attempt=2)
    journal = read(volume, attempt=3)
    found = [find(journal, 3, policies=each) for each in (old, new)]
    assert [len(each.trajectories[0].token_ids) for each in found if each] == [4, 5]
    assert find(read(volume, attempt=1), 3, policies=new) is None, "of an attempt that came later"


def test_of_two_records_the_last_counts_and_a_newer_attempts_above_an_older_ones(volume):
    def length():
        journal.refresh()
        found = find(journal, 3)
        assert found is not None
        return len(found.trajectories[0].token_ids) - 3

    journal = read(volume, attempt=2)
    write(volume, episode(3, length=1), used_by([], step=1))
    assert length() == 1
    write(volume, episode(3, length=2))
    assert length() == 2
    write(volume, episode(3, length=3), used_by([], step=3), attempt=2)
    assert length() == 3
    write(volume, episode(3, length=4), used_by([], step=4))  # by an attempt that does not know that it was superseded
    used = journal.used("policy 7", "step settings")
    assert used is not None
    assert (length(), used.step, len(journal)) == (3, 3, 1)


def test_what_a_step_used_is_found_by_its_policy_and_settings(volume):
    used = used_by([group(3), group(1)])
    write(volume, used)
    journal = read(volume)
    assert journal.used("policy 7", "step settings") == used
    assert journal.used("policy 7", "other settings") is None
    assert journal.used("policy 8", "step settings") is None


def test_versions_before_a_checkpoint_are_not_read(volume):
    for version in (9, 10, 11):
        write(volume, episode(version), used_by([], digest=str(version)), version=version)
    journal = read(volume, from_version=10)
    assert numbers_in(journal) == [10, 11]
    assert [journal.used(str(version), "step settings") is not None for version in (9, 10, 11)] == [False, True, True]


def test_refresh_sees_what_its_own_process_appended_and_forgets_what_was_truncated(volume):
    journal = read(volume)
    assert (len(journal), journal.torn) == (0, 0)
    with JournalWriter(volume) as writer:
        writer.append([as_record(episode(1)), as_record(used_by([]))], 1, 7)
        writer.append([as_record(episode(2))], 1, 8)
        assert len(journal) == 0
        journal.refresh()
        assert numbers_in(journal) == [1, 2]
        writer.append([as_record(episode(3))], 1, 8)
        journal.refresh()
        assert numbers_in(journal) == [1, 2, 3]
        truncate(volume, 8, attempt=1)
        assert numbers_in(journal) == [2, 3], "also before the next refresh"
        journal.refresh()
        assert (len(journal), journal.used("policy 7", "step settings")) == (2, None)
        writer.append([as_record(episode(4))], 1, 8)
    assert numbers_in(read(volume)) == [2, 3, 4], "the writer goes on"


def test_a_file_that_is_begun_again_never_answers_for_the_old_one(volume):
    write(volume, episode(1))
    journal = read(volume)
    truncate(volume, 8, attempt=1)
    write(volume, episode(2))
    assert find(journal, 1) is None


# ---- truncation


def test_truncate_deletes_needless_versions_and_folders_that_it_empties_but_nothing_of_later_attempts(volume):
    for attempt, version in [(1, 6), (2, 7), (2, 8), (3, 7), (5, 1)]:
        write(volume, episode(1), attempt=attempt, version=version)
    (volume.journals / "a2" / "note").touch()
    (volume.journals / "a4").mkdir()
    assert truncate(volume, 8, attempt=3) == 3
    left = sorted(str(path.relative_to(volume.journals)) for path in volume.journals.rglob("*"))
    assert left == ["a2", "a2/note", "a2/version-8.journal", "a3", "a4", "a5", "a5/version-1.journal"]
    assert truncate(volume, 8, attempt=3) == 0
    assert truncate(Volume(volume.root / "none"), 7, attempt=3) == 0


# ---- damage


@pytest.fixture
def small(volume):
    """A file of three small episodes: its path, its bytes, and where each record ends."""
    ends, path = [], volume.journal(1, 7)
    for number in range(3):
        write(volume, episode(number, length=2))
        ends.append(path.stat().st_size)
    return path, path.read_bytes(), ends


def test_a_file_cut_anywhere_gives_the_whole_records_before_the_cut(volume, small):
    path, content, ends = small
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        journal = read(volume)
        assert numbers_in(journal, 3) == list(range(sum(end <= cut for end in ends))), cut
        torn = cut not in {0, *ends}
        assert (journal.torn, journal.damaged, journal.incomplete) == (torn, 0, [path] if torn else []), cut


def test_every_flipped_byte_is_noticed_and_costs_its_record_or_the_rest(volume, small):
    path, content, ends = small
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        journal = read(volume)
        assert journal.torn + journal.damaged == 1, position
        hit = sum(end <= position for end in ends)
        before = 0 if position < 8 else hit
        expected = [n for n in range(3) if n != hit] if journal.damaged else list(range(before))
        assert numbers_in(journal, 3) == expected, position
        for number in expected:
            assert_same_episode(find(journal, number), episode(number, length=2))


def test_damage_after_the_file_was_read_is_noticed_too(volume, small):
    path, content, ends = small
    journal = read(volume)
    path.write_bytes(content[: ends[1] - 1] + b"!" + content[ends[1] :])
    assert numbers_in(journal, 3) == [0, 2]


@pytest.mark.parametrize("torn", [b"", b"\0" * 40, b"RLJ"])
def test_a_writer_drops_the_torn_tail_says_so_and_goes_on(volume, small, torn):
    path, content, ends = small
    path.write_bytes(torn if torn == b"RLJ" else content[: ends[1] + 20] + torn)
    with capture_logs() as logs:
        write(volume, episode(5))
    journal = read(volume)
    assert numbers_in(journal) == ([5] if torn == b"RLJ" else [0, 1, 5])
    assert journal.torn == 0
    assert (20 + len(torn) if torn != b"RLJ" else 3) in [line.get("bytes") for line in logs]


def test_a_reader_that_meets_a_record_half_written_finds_it_later(volume, small):
    path, content, ends = small
    path.write_bytes(content[: ends[2] - 1])
    journal = read(volume)
    assert (numbers_in(journal), journal.torn) == ([0, 1], 1)
    path.write_bytes(content)
    journal.refresh()
    assert (numbers_in(journal), journal.torn) == ([0, 1, 2], 0)


def test_strange_files_and_folders_are_left_alone(volume):
    write(volume, episode(1))
    for name in ("a1/version-7.journal.bak", "a1/version-x.journal", "b1/version-7.journal", "lost+found"):
        path = volume.journals / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("something else")
    journal = read(volume)
    assert (numbers_in(journal), journal.torn) == ([1], 0)
