"""The rollout journal: what is written is found again, by nobody else, and survives what processes and disks do."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from rljob_trainer.errors import FencedError, InfrastructureError, StorageFullError
from rljob_trainer.journal import Journal, JournalWriter, truncate
from rljob_trainer.journal.summary import summarise
from rljob_trainer.loop import loop as loop_module
from rljob_trainer.loop.loop import Loop
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt
from tests.rljob_trainer.journal_support import KEY, assert_same_group, group, key, prompt, score_of


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


def write(volume, *numbers, key=KEY, **changes):
    with JournalWriter(volume) as writer:
        for number in numbers:
            writer.append(key, group(number, **changes), score_of(group(number, **changes)))


def read(volume, attempt=1, after_step=0):
    return Journal.read(volume, attempt, after_step)


def numbers_in(journal, key=KEY, count=20):
    return [number for number in range(count) if journal.find(key, prompt(number))]


# ---- what is found


@pytest.mark.parametrize("error", [None, "reward own returned nan, for prompt 0/3, sample 1"])
def test_a_group_comes_back_bit_for_bit_with_its_summary(volume, error):
    made, score = group(3), score_of(group(3), error)
    with JournalWriter(volume) as writer:
        writer.append(KEY, made, score)
    found, summary = read(volume).find(KEY, made.prompt)
    assert_same_group((found, summary.score), made, score)
    scored = summarise(made, score)
    assert summary.digest == scored.digest
    assert replace(summary, score=score) == replace(scored, score=score)


def test_a_group_is_found_only_for_its_step_policy_settings_and_prompt(volume):
    write(volume, 3)
    journal = read(volume)
    assert journal.find(KEY, prompt(3)) is not None
    assert journal.find(key(attempt=9), prompt(3)) is not None
    for other in (key(step=8), key(policy_digest="other"), key(fingerprint="other")):
        assert journal.find(other, prompt(3)) is None
    assert journal.find(KEY, prompt(4)) is None
    assert journal.find(KEY, prompt(3, length=4)) is None  # the data changed under the id
    assert journal.holds(7, KEY.policy_digest)
    assert not journal.holds(8, KEY.policy_digest)
    assert not journal.holds(7, "other"), "what it has of that step is for nobody"


def test_attempts_may_do_the_same_step_with_different_policies(volume):
    write(volume, 3, key=key(attempt=1, policy_digest="old"), version=5)
    write(volume, 3, key=key(attempt=2, policy_digest="new"), version=6)
    journal = read(volume, attempt=3)
    assert journal.find(key(policy_digest="old"), prompt(3))[0].policy_version == 5
    assert journal.find(key(policy_digest="new"), prompt(3))[0].policy_version == 6
    assert len(read(volume, attempt=1)) == 1


def test_steps_before_a_checkpoint_are_not_read(volume):
    for step in (9, 10, 11):
        write(volume, 1, key=key(step=step))
    journal = read(volume, after_step=9)
    assert [step for step in (9, 10, 11) if journal.holds(step, KEY.policy_digest)] == [10, 11]


def test_of_two_records_the_last_counts_and_a_newer_attempts_above_an_older_ones(volume):
    write(volume, 3, version=1)
    journal = read(volume, attempt=2)
    assert journal.find(KEY, prompt(3))[0].policy_version == 1
    write(volume, 3, version=2)
    write(volume, 3, key=key(attempt=2), version=3)
    journal.refresh()
    assert journal.find(KEY, prompt(3))[0].policy_version == 3
    write(volume, 3, version=4)  # of an attempt that does not know that it was superseded
    journal.refresh()
    assert journal.find(KEY, prompt(3))[0].policy_version == 3
    assert (len(journal), read(volume, attempt=1).find(KEY, prompt(3))[0].policy_version) == (1, 4)


def test_refresh_sees_what_was_appended_and_forgets_what_was_truncated(volume):
    journal = read(volume)
    assert (len(journal), journal.torn) == (0, 0)
    write(volume, 1)
    write(volume, 2, key=key(step=8))
    assert len(journal) == 0
    journal.refresh()
    assert (numbers_in(journal), numbers_in(journal, key(step=8))) == ([1], [2])
    truncate(volume, 7, attempt=1)
    assert journal.find(KEY, prompt(1)) is None
    journal.refresh()
    assert (len(journal), numbers_in(journal, key(step=8))) == (1, [2])


def test_a_file_begun_anew_never_answers_for_the_old_one(volume):
    write(volume, 1)
    journal = read(volume)
    truncate(volume, 7, attempt=1)
    write(volume, 2)
    assert journal.find(KEY, prompt(1)) is None


# ---- truncation


def test_truncate_deletes_needless_steps_of_all_attempts_and_folders_it_empties(volume):
    for attempt, step in [(1, 6), (2, 7), (2, 8), (3, 7)]:
        write(volume, 1, key=key(attempt=attempt, step=step))
    (volume.journals / "a2" / "note").touch()
    assert truncate(volume, 7, attempt=3) == 3
    left = sorted(str(path.relative_to(volume.journals)) for path in volume.journals.rglob("*"))
    assert left == ["a2", "a2/note", "a2/step-8.journal", "a3"]
    assert truncate(volume, 7, attempt=3) == 0
    assert truncate(Volume(volume.root / "none"), 7, attempt=3) == 0


def test_truncate_leaves_alone_what_later_attempts_write(volume):
    for attempt, step in [(1, 6), (2, 6), (3, 1)]:
        write(volume, 1, key=key(attempt=attempt, step=step))
    (volume.journals / "a4").mkdir()
    assert truncate(volume, 40, attempt=2) == 2
    assert sorted(path.name for path in volume.journals.iterdir()) == ["a2", "a3", "a4"]
    assert volume.journal(3, 1).exists()


def test_a_driver_that_thaws_after_its_save_deletes_nothing_of_the_attempt_that_took_over(volume):
    first = begin_attempt(volume, 1)
    write(volume, 1, key=key(attempt=1, step=40))
    ref = first.save(40)
    begin_attempt(volume, 2, resume="never")
    for step in range(1, 6):
        write(volume, 1, key=key(attempt=2, step=step))
    loop = Loop.__new__(Loop)
    loop.volume, loop.repair = volume, None
    with pytest.raises(FencedError):
        loop._forget_needless(ref)
    assert len(list(volume.journals.rglob("*.journal"))) == 6


def test_a_checkpoint_that_is_durable_is_no_failure_where_no_group_can_be_deleted(volume, monkeypatch):
    """As with older checkpoints that cannot be: the next one tries again."""
    first = begin_attempt(volume, 1)
    write(volume, 1, key=key(attempt=1, step=40))
    loop = Loop.__new__(Loop)
    loop.volume, loop.repair = volume, None
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(loop_module, "truncate", refuse)
        loop._forget_needless(first.save(40))
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["journal_not_truncated"]
    loop._forget_needless(first.save(41))
    assert not list(volume.journals.rglob("*.journal"))


def refuse(*_):
    raise InfrastructureError("cannot delete needless files")


def test_a_writer_goes_on_after_its_file_was_deleted(volume):
    with JournalWriter(volume) as writer:
        writer.append(KEY, group(1), score_of(group(1)))
        truncate(volume, 7, attempt=1)
        writer.append(key(step=8), group(2), score_of(group(2)))
    assert numbers_in(read(volume), key(step=8)) == [2]


# ---- damage


@pytest.fixture
def small(volume):
    """A file of three small groups: its path, its bytes, and where each record ends."""
    ends = []
    for number in range(3):
        write(volume, number, lengths=(1, 2))
        ends.append(volume.journal(1, 7).stat().st_size)
    path = volume.journal(1, 7)
    return path, path.read_bytes(), ends


def test_a_file_cut_anywhere_gives_the_whole_records_before_the_cut(volume, small):
    path, content, ends = small
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        journal = read(volume)
        whole = sum(end <= cut for end in ends)
        assert numbers_in(journal, count=3) == list(range(whole)), cut
        assert journal.torn == (cut not in {0, *ends}), cut
        assert journal.damaged == 0


def test_every_flipped_byte_is_noticed_and_costs_its_record_or_the_rest(volume, small):
    path, content, ends = small
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :])
        journal = read(volume)
        assert journal.torn + journal.damaged == 1, position
        hit = sum(end <= position for end in ends)
        kept = [0, 1, 2]
        expected = [n for n in kept if n != hit] if journal.damaged else kept[: 0 if position < 8 else hit]
        for number in kept:
            found = journal.find(KEY, prompt(number))
            assert (found is not None) == (number in expected), position
            if found:
                made = group(number, lengths=(1, 2))
                assert_same_group((found[0], found[1].score), made, score_of(made))


def test_damage_after_the_file_was_read_is_noticed_too(volume, small):
    path, content, ends = small
    journal = read(volume)
    path.write_bytes(content[: ends[1] - 1] + b"!" + content[ends[1] :])
    assert numbers_in(journal, count=3) == [0, 2]


@pytest.mark.parametrize("torn", [b"", b"\0" * 40, b"RLJ"])
def test_a_writer_drops_the_torn_tail_says_so_and_goes_on(volume, small, torn, capsys):
    path, content, ends = small
    path.write_bytes(torn if torn == b"RLJ" else content[: ends[1] + 20] + torn)
    write(volume, 5)
    journal = read(volume)
    assert numbers_in(journal) == ([5] if torn == b"RLJ" else [0, 1, 5])
    assert journal.torn == 0
    assert f"bytes={20 + len(torn) if torn != b'RLJ' else 3}" in capsys.readouterr().out


def test_a_reader_that_meets_a_record_half_written_finds_it_later(volume, small):
    path, content, ends = small
    path.write_bytes(content[: ends[2] - 1])
    journal = read(volume)
    assert (numbers_in(journal), journal.torn) == ([0, 1], 1)
    path.write_bytes(content)
    journal.refresh()
    assert (numbers_in(journal), journal.torn) == ([0, 1, 2], 0)


def test_strange_files_and_folders_are_left_alone(volume):
    write(volume, 1)
    for name in ("a1/step-7.journal.bak", "a1/step-x.journal", "b1/step-7.journal", "lost+found"):
        path = volume.journals / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("something else")
    journal = read(volume)
    assert (numbers_in(journal), journal.torn) == ([1], 0)


# ---- processes


def test_many_threads_may_append_to_several_steps_at_once(volume):
    with JournalWriter(volume) as writer, ThreadPoolExecutor(8) as threads:
        jobs = [
            threads.submit(writer.append, key(step=step), group(number), score_of(group(number)))
            for number in range(100)
            for step in (7, 8)
        ]
        for job in jobs:
            job.result()
    journal = read(volume)
    assert (len(journal), journal.torn, journal.damaged) == (200, 0, 0)
    for number in range(100):
        found, summary = journal.find(KEY, prompt(number))
        assert_same_group((found, summary.score), group(number), score_of(group(number)))


def test_what_was_appended_is_durable_soon_without_being_asked(volume, monkeypatch):
    synced = threading.Event()
    fsync = os.fsync

    def watch(descriptor):
        fsync(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".journal"):
            synced.set()

    monkeypatch.setattr(os, "fsync", watch)
    with JournalWriter(volume) as writer:
        writer.append(KEY, group(1), score_of(group(1)))
        assert synced.wait(10)


def test_nobody_who_appends_waits_for_a_slow_volume(volume, monkeypatch):
    fsync, answers = os.fsync, threading.Event()
    monkeypatch.setattr(os, "fsync", lambda descriptor: answers.wait(60) and fsync(descriptor))
    with JournalWriter(volume) as writer:
        for step in range(7, 12):
            writer.append(key(step=step), group(1), score_of(group(1)))
        assert len(Journal.read(volume, 1, after_step=0)) == 5
        assert not answers.is_set()
        answers.set()


def test_a_writer_killed_at_any_moment_loses_no_group_that_it_reported(volume):
    program = """
        import sys
        from pathlib import Path
        from tests.rljob_trainer.journal_support import group, key, score_of
        from rljob_trainer.journal import JournalWriter
        from rljob_trainer.volume import Volume

        writer = JournalWriter(Volume(Path(sys.argv[1])))
        for number in range(10**9):
            made = group(number, lengths=(9000, 9000))
            writer.append(key(step=7 + number // 50), made, score_of(made))
            print(number, flush=True)
    """
    environment = os.environ | {"PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", textwrap.dedent(program), str(volume.root)]
    for reported_before_kill in (1, 40, 130):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for _ in range(reported_before_kill):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            reported = reported_before_kill + len(process.stdout.read().splitlines())
        journal = read(volume)
        for number in range(reported):
            made = group(number, lengths=(9000, 9000))
            found, summary = journal.find(key(step=7 + number // 50), made.prompt)
            assert_same_group((found, summary.score), made, score_of(made))
        assert journal.damaged == 0
        shutil.rmtree(volume.journals)


# ---- storage


@pytest.fixture
def tiny_volume(tmp_path):
    """64 KiB that fill up."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    yield Volume(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_volume_is_named_and_what_was_written_stays_good(tiny_volume):
    written = 0

    def fill(writer):
        nonlocal written
        for number in range(100):
            writer.append(KEY, group(number, lengths=(700,)), score_of(group(number, lengths=(700,))))
            written += 1

    with JournalWriter(tiny_volume) as writer:
        with pytest.raises(StorageFullError, match=f"no space left .*{tiny_volume.root}.*: free space"):
            fill(writer)
        journal = read(tiny_volume)
        assert written > 2
        assert (numbers_in(journal), journal.torn) == (list(range(written)), 1)
        with pytest.raises(StorageFullError):
            writer.append(key(step=8), group(99, lengths=(9000,)), score_of(group(99, lengths=(9000,))))
        tiny_volume.journal(1, 8).unlink()
        writer.append(KEY, group(written), score_of(group(written)))  # a small one fits where the torn one was
    journal = read(tiny_volume)
    assert (numbers_in(journal), journal.torn) == (list(range(written + 1)), 0)


def test_other_failures_of_the_volume_are_infrastructure(volume):
    volume.journals.write_text("a file where the folder belongs")
    writer = JournalWriter(volume)
    with pytest.raises(InfrastructureError, match="cannot write the rollout journal"):
        writer.append(KEY, group(1), score_of(group(1)))
    writer.close()


@pytest.mark.parametrize(("number", "kind"), [(28, StorageFullError), (5, InfrastructureError)])
def test_a_failed_fsync_reaches_the_next_caller(volume, monkeypatch, number, kind):
    failed = threading.Event()

    def fail(descriptor):
        failed.set()
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    writer = JournalWriter(volume)
    writer.append(KEY, group(1), score_of(group(1)))
    assert failed.wait(10)
    with pytest.raises(kind):
        writer.close()
    with pytest.raises(kind):
        writer.append(KEY, group(2), score_of(group(2)))


def test_closing_leaves_no_thread_and_no_open_file(volume):
    before = set(os.listdir("/proc/self/fd"))
    writer = JournalWriter(volume)
    for step in range(7, 12):
        writer.append(key(step=step), group(1), score_of(group(1)))
    writer.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "journal-sync"]
    with pytest.raises(InfrastructureError, match="closed"):
        writer.append(KEY, group(1), score_of(group(1)))


def test_long_groups_come_back_too(volume):
    made = group(1, lengths=(300_000, 1))
    with JournalWriter(volume) as writer:
        writer.append(KEY, made, score_of(made))
    found, summary = read(volume).find(KEY, made.prompt)
    assert_same_group((found, summary.score), made, score_of(made))
    assert np.isfinite(found.samples[0].log_probs).all()
