"""`rljob checkpoints`, and what a checkpoint says of the data at the end of an epoch."""

import shutil

import pytest

from rljob_trainer.checkpoint.manifest import MANIFEST
from rljob_trainer.progress.overview import lines, look_at
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt
from tests.rljob_trainer.cli_support import rljob


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path / "run")


def rljob_checkpoints(folder):
    return rljob("checkpoints", folder)


def listed(volume):
    """The rows of the table, by step and attempt."""
    done = rljob_checkpoints(volume.root)
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()[1:]]
    return {(int(step), int(attempt)): " ".join(rest.split()) for step, attempt, rest in rows}


def test_checkpoints_are_listed_with_why_they_are_kept_and_whether_they_verify(volume):
    begin_attempt(volume, 1).save(1)
    fresh = begin_attempt(volume, 2, resume="never", keepLast=2, keepEvery=2, keepBest=1)
    fresh.save(2, 0.25)
    fresh.save(3, 0.75, validation_reward=0.5)
    fresh.save(4, None)
    (fresh.save(5).path / "trainer.json").unlink()
    (volume.checkpoints / "step-6-a2").mkdir()
    (fresh.save(7).path / MANIFEST).write_text("{")
    (volume.checkpoints / "step-8-a2").mkdir()
    rows = listed(volume)
    assert "does not count: from before the run started over" in rows[1, 1]
    assert rows[2, 2].startswith("0:0")
    assert rows[2, 2].endswith("0.0 MB 0.250 every 2 whole")
    assert rows[3, 2].endswith("0.750 (validation 0.500) best whole")
    assert rows[4, 2].endswith("0.0 MB - last, every 2 whole")
    assert rows[5, 2].endswith("last checkpoint step-5-a2: trainer.json is missing")
    assert rows[6, 2] == "- - - - does not count: unfinished"
    assert rows[7, 2] == "- - - - does not count: its manifest is invalid"
    assert rows[8, 2] == "- - - - does not count: unfinished"
    (volume.checkpoint(7, 2) / MANIFEST).unlink()
    assert listed(volume)[7, 2] == "- - - - does not count: its manifest is missing"
    shutil.rmtree(volume.checkpoint(7, 2))
    assert listed(volume)[7, 2] == "- - - - does not count: it is missing"


def test_one_that_cannot_be_read_is_listed_with_the_reason_and_hides_no_other(volume):
    first = begin_attempt(volume, 1)
    for step in (1, 2):
        first.save(step)
    (volume.checkpoint(1, 1) / MANIFEST).unlink()
    (volume.checkpoint(1, 1) / MANIFEST).mkdir()
    rows = listed(volume)
    assert rows[1, 1] == "- - - - checkpoint step-1-a1 cannot be read: Is a directory; check the volume"
    assert rows[2, 1].endswith("last whole")
    checkpoint = look_at(volume.root).checkpoint
    assert checkpoint is not None
    assert checkpoint.manifest.step == 2


def test_a_folder_without_checkpoints_says_so(tmp_path):
    done = rljob_checkpoints(tmp_path)
    assert (done.returncode, done.stderr) == (65, f"error: {tmp_path} has no checkpoint\n")
    (tmp_path / "file").touch()
    for other in ("file", "missing"):
        done = rljob_checkpoints(tmp_path / other)
        assert (done.returncode, "is not a directory" in done.stderr) == (65, True)


def test_the_status_says_where_the_newest_checkpoint_cannot_be_read(volume):
    first = begin_attempt(volume, 1)
    older, newest = first.save(1), first.save(2)
    (newest.path / MANIFEST).unlink()
    (newest.path / MANIFEST).mkdir()
    problem = "checkpoint step-2-a1 cannot be read: Is a directory; check the volume"
    found = look_at(volume.root)
    assert lines(found)[-2:] == [f"checkpoint  step 1 ({older.path})", f"unread      {problem}"]
    assert found.as_json()["unread"] == problem
    shutil.rmtree(newest.path)
    assert look_at(volume.root).unread == ""


def test_the_status_of_a_run_whose_checkpoints_cannot_be_listed_says_the_rest(volume):
    begin_attempt(volume, 1).save(1)
    volume.claim(1).unlink()
    volume.claim(1).mkdir()
    found = look_at(volume.root)
    assert found.checkpoint is None
    assert found.unread == f"{volume.claim(1)} cannot be read: Is a directory; check the volume"
    assert [line.split()[0] for line in lines(found)] == ["job", "state", "unread"]
