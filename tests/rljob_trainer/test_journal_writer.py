"""The journal's writer: what it reported survives what processes and disks do."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_trainer.errors import InfrastructureError, StorageFullError
from rljob_trainer.journal import JournalWriter
from rljob_trainer.volume import Volume
from tests.rljob_trainer.journal_support import as_record, assert_same_episode, episode, find, numbers_in, read


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


def test_many_threads_may_append_to_several_versions_at_once(volume):
    with JournalWriter(volume) as writer, ThreadPoolExecutor(8) as threads:
        jobs = [
            threads.submit(writer.append, [as_record(episode(number, sample))], 1, 7 + sample)
            for number in range(100)
            for sample in range(2)
        ]
        for job in jobs:
            job.result()
    journal = read(volume)
    assert (len(journal), journal.torn, journal.damaged) == (200, 0, 0)
    for number in range(100):
        assert_same_episode(find(journal, number, 1), episode(number, 1))


def test_a_writer_killed_at_any_moment_loses_no_episode_that_it_reported(volume):
    program = """
        import sys
        from pathlib import Path
        from tests.rljob_trainer.journal_support import as_record, episode
        from rljob_trainer.journal import JournalWriter
        from rljob_trainer.volume import Volume

        writer = JournalWriter(Volume(Path(sys.argv[1])))
        for number in range(10**9):
            writer.append([as_record(episode(number, length=9000))], 1, 7 + number // 50)
            print(number, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(volume.root)]
    for reported_before_kill in (1, 130):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(reported_before_kill):
                process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            reported = reported_before_kill + len(process.stdout.read().splitlines())
        journal = read(volume)
        for number in range(reported):
            assert_same_episode(find(journal, number), episode(number, length=9000))
        assert journal.damaged == 0
        shutil.rmtree(volume.journals)


# ---- the disk


@pytest.fixture
def disk(monkeypatch):
    """Event that lets every fsync go on, and for each file what a power cut would leave of it."""
    fsync, answers, left = os.fsync, threading.Event(), {}

    def watch(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        content = os.pread(descriptor, 1 << 20, 0) if path.endswith(".journal") else b""
        assert answers.wait(60)
        fsync(descriptor)
        left[path] = content

    monkeypatch.setattr(os, "fsync", watch)
    return answers, left


def test_append_waits_for_no_disk_and_sync_for_all_that_was_appended_before(volume, disk):
    answers, left = disk
    with JournalWriter(volume) as writer, ThreadPoolExecutor(1) as thread:
        for version in range(7, 12):
            writer.append([as_record(episode(version))], 1, version)
        assert numbers_in(read(volume)) == [7, 8, 9, 10, 11]
        syncing = thread.submit(writer.sync)
        with pytest.raises(TimeoutError):
            syncing.result(0.1)
        answers.set()
        syncing.result(10)
        assert {path: content for path, content in left.items() if content} == {
            str(path): path.read_bytes() for path in volume.journals.rglob("*.journal")
        }
        for folder in (volume.root, volume.journals, volume.journals / "a1"):
            assert str(folder) in left, "a power cut must not undo its name"
        writer.sync()


def test_what_was_appended_is_durable_soon_without_a_sync(volume, disk):
    answers, left = disk
    answers.set()
    with JournalWriter(volume) as writer:
        writer.append([as_record(episode(1))], 1, 7)
        deadline = threading.Event()
        while not left.get(str(volume.journal(1, 7))):
            assert not deadline.wait(0.01)


@pytest.fixture
def tiny_volume(tmp_path):
    """64 KiB that fill up."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    yield Volume(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_volume_is_named_and_what_was_written_stays_good(tiny_volume):
    written = 0
    with JournalWriter(tiny_volume) as writer:
        with pytest.raises(StorageFullError, match=f"{tiny_volume.root} .*no space left"):  # noqa: PT012
            for written in range(100):
                writer.append([as_record(episode(written, length=700))], 1, 7)
        journal = read(tiny_volume)
        assert written > 2
        assert (numbers_in(journal), journal.torn) == (list(range(written)), 1)
        writer.append([as_record(episode(written))], 1, 7)  # a small one fits where the torn one was
    journal = read(tiny_volume)
    assert (numbers_in(journal), journal.torn) == (list(range(written + 1)), 0)


def test_other_failures_of_the_volume_are_infrastructure(volume):
    volume.journals.write_text("a file where the folder belongs")
    writer = JournalWriter(volume)
    with pytest.raises(InfrastructureError, match=r"rollout journal .* cannot be written"):
        writer.append([b""], 1, 7)
    writer.close()


@pytest.mark.parametrize(("number", "kind"), [(28, StorageFullError), (5, InfrastructureError)])
def test_a_failed_fsync_reaches_all_that_is_asked_of_the_writer_later(volume, monkeypatch, number, kind):
    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    writer = JournalWriter(volume)
    writer.append([as_record(episode(1))], 1, 7)
    for ask in (writer.sync, lambda: writer.append([as_record(episode(2))], 1, 7), writer.close):
        with pytest.raises(kind):
            ask()
    assert writer.failed


def test_closing_leaves_no_thread_and_no_open_file(volume):
    before = set(os.listdir("/proc/self/fd"))
    writer = JournalWriter(volume)
    for version in range(7, 12):
        writer.append([as_record(episode(1))], 1, version)
    writer.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "journal-sync"]
    with pytest.raises(InfrastructureError, match="closed"):
        writer.append([b""], 1, 7)
