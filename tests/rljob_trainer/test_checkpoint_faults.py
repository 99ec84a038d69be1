"""Volumes that are full, read-only or damaged: nothing half-written counts, and what is left is named."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rljob_trainer.attempt.claim import claim
from rljob_trainer.checkpoint.manifest import MANIFEST, durable_step, survey, verify
from rljob_trainer.errors import DataError, InfrastructureError, NoUsableCheckpoint, StorageFullError
from rljob_trainer.loop import checkpoints as checkpoints_module
from rljob_trainer.volume import Volume, write_json
from tests.rljob_trainer.checkpoint_support import (
    Attempt,
    FileRanks,
    begin_attempt,
    names,
    resumption_of,
    save,
)
from tests.rljob_trainer.small_disk import mounted

PAGE = 4096


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path / "run")


def leave_free(volume: Volume, size: int) -> None:
    """Fill the volume but for `size` bytes."""
    status = os.statvfs(volume.root)
    (volume.root / "ballast").write_bytes(bytes(max(0, status.f_bavail * status.f_bsize - size)))


def left_of_saves(volume: Volume) -> list[str]:
    return sorted(path.name for path in volume.checkpoints.iterdir())


# ---------------------------------------------------------------------- no space, no writing


def test_a_disk_that_fills_up_at_any_point_of_a_save_costs_that_save_only(tmp_path):
    outcomes = []
    with mounted(tmp_path / "disk", "size=1m") as volume:
        first = begin_attempt(volume, 1, keepLast=9)
        kept = first.save(1)
        for step, free in enumerate(range(0, 320 * 1024, 2 * PAGE), start=2):
            leave_free(volume, free)
            outcomes.append(outcome_of_save(first, step))
            assert (volume.checkpoint(step, 1) / MANIFEST).exists() == (outcomes[-1] == "saved")
            shutil.rmtree(volume.checkpoint(step, 1), ignore_errors=True)
            (volume.root / "ballast").unlink()
            assert left_of_saves(volume) == ["step-1-a1"]
        verify(kept)
        assert resumption_of(volume).find() == kept
    full = outcomes.index("saved")
    assert full > 20
    assert set(outcomes[full:]) == {"saved"}
    for step, message in enumerate(outcomes[:full], start=2):
        assert message.startswith(f"no space left for the checkpoint of step {step} on {tmp_path / 'disk'}:")


def outcome_of_save(attempt: Attempt, step: int) -> str:
    """Two ranks of 96 KiB each. Anything but a full disk fails the test."""
    try:
        save(attempt.checkpoints, step, {"step": step}, 0.5, FileRanks(size=96 * 1024))
    except StorageFullError as error:
        return str(error)
    return "saved"


def test_a_volume_that_became_read_only_is_named_and_still_read(tmp_path):
    with mounted(tmp_path / "disk", "size=1m") as volume:
        first = begin_attempt(volume, 1)
        kept = first.save(1)
        subprocess.run(["mount", "-o", "remount,ro", volume.root], check=True)
        with pytest.raises(
            InfrastructureError, match=r"^the checkpoint of step 2 on .*/disk cannot be written: Read-only"
        ):
            first.save(2)
        assert resumption_of(volume).find() == kept
        with pytest.raises(
            InfrastructureError, match=r"^attempt 2 cannot be claimed on .*/disk: Read-only file system"
        ):
            claim(volume, 2)
        subprocess.run(["mount", "-o", "remount,rw", volume.root], check=True)
        first.save(2)
        assert names(volume) == ["step-1-a1", "step-2-a1"]


def test_a_claim_on_a_full_volume_says_so(tmp_path):
    with mounted(tmp_path / "disk", "size=1m,nr_inodes=20") as volume:
        for index in range(30):
            try:
                (volume.root / str(index)).touch()
            except OSError:
                break
        with pytest.raises(StorageFullError, match=r"attempt 1 .*no space left"):
            claim(volume, 1)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_cannot_be_written_leaves_nothing_and_the_old_one_stays(tmp_path, monkeypatch, call):
    path = tmp_path / "progress.json"
    write_json(path, 1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_json(path, 2)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("progress.json", "1")]


# ---------------------------------------------------------------------- damage


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(folder: Path) -> None:
    """All but the manifest."""
    for name in ("ranks", "model"):
        shutil.rmtree(folder / name)


DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a torn file": (lambda ref: tear(ref.path / "trainer.json"), "trainer.json is damaged"),
    "a flipped bit": (lambda ref: flip(ref.path / "ranks/__1_0.distcp"), "ranks/__1_0.distcp is damaged"),
    "a missing rank": (lambda ref: (ref.path / "ranks/__1_0.distcp").unlink(), "ranks/__1_0.distcp is missing"),
    "no data": (lambda ref: empty(ref.path), "is missing"),
    "a torn manifest": (lambda ref: tear(ref.path / MANIFEST), "its manifest is invalid"),
    "an empty manifest": (lambda ref: (ref.path / MANIFEST).write_text(""), "its manifest is invalid"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_and_the_log_says_why(volume, damage):
    inflict, reason = DAMAGES[damage]
    first = begin_attempt(volume, 1)
    whole, damaged = first.save(1), first.save(2)
    inflict(damaged)
    with capture_logs() as logs:
        assert resumption_of(volume).find() == whole
    skipped = [line for line in logs if line["event"] == "checkpoint_skipped"]
    assert [line["path"] for line in skipped] == [str(damaged.path)]
    assert reason in skipped[0]["reason"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_a_resume_skipped_stays_for_whoever_restores_it(volume, damage):
    inflict, _ = DAMAGES[damage]
    first = begin_attempt(volume, 1)
    whole, damaged = first.save(1), first.save(2)
    inflict(damaged)
    second = begin_attempt(volume, 2)
    assert second.found == whole
    second.save(3)
    assert damaged.path.is_dir()
    assert whole.path.is_dir()


@pytest.mark.parametrize("name", ["trainer.json", MANIFEST])
def test_a_volume_that_does_not_answer_is_no_damage(volume, name, tmp_path, monkeypatch):
    """Going back to an older checkpoint would supersede, and so delete, a newer one that is whole."""
    first = begin_attempt(volume, 1)
    older, newest = first.save(1), first.save(2)
    opened = Path.open

    def stale(path, *arguments, **options):
        if path == newest.path / name:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", stale)
    with pytest.raises(InfrastructureError, match=r"step-2-a1 cannot be read: Stale file handle; .*move"):
        resumption_of(volume).find()
    newest.path.rename(tmp_path / "away")
    assert resumption_of(volume).find() == older


def hide(path: Path) -> None:
    """The volume answers with an error where a file was."""
    path.unlink()
    path.mkdir()


def test_an_old_checkpoint_that_is_unreadable_hides_no_other(volume):
    first = begin_attempt(volume, 1, keepLast=2)
    old, newest = first.save(1), first.save(2)
    hide(old.path / MANIFEST)
    assert names(volume) == ["step-2-a1"]
    assert resumption_of(volume).find() == newest
    (unreadable, _) = survey(volume)
    assert (unreadable.standing, unreadable.lost) == ("unreadable", True)
    assert unreadable.problem == "checkpoint step-1-a1 cannot be read: Is a directory; check the volume"


def test_what_is_unreadable_is_never_deleted(volume):
    first = begin_attempt(volume, 1, keepLast=1)
    hide(first.save(1).path / MANIFEST)
    for step in (2, 3):
        first.save(step)
    begin_attempt(volume, 2, keepLast=1).save(4)
    hide(volume.checkpoint(4, 2) / MANIFEST)
    begin_attempt(volume, 3, resume="never", keepLast=1).save(1)
    assert left_of_saves(volume) == ["step-1-a1", "step-1-a3", "step-4-a2"]


def test_resume_tries_again_rather_than_go_back_beyond_one_that_is_unreadable(volume):
    first = begin_attempt(volume, 1)
    saved = [first.save(step) for step in (1, 2, 3)]
    (saved[2].path / "trainer.json").unlink()
    hide(saved[1].path / MANIFEST)
    with pytest.raises(InfrastructureError, match="step-2-a1 cannot be read: Is a directory"):
        resumption_of(volume).find()
    assert resumption_of(volume, resume="never").find() is None, "it asks for none of them"


def test_living_workers_go_on_where_the_newest_checkpoint_is_unreadable(volume):
    """As where it is lost: the claim names it, and the next one is due at once."""
    first = begin_attempt(volume, 1)
    first.save(1)
    hide(first.save(2).path / MANIFEST)
    newest = resumption_of(volume).newest()
    assert newest is not None
    assert (newest.path.name, newest.lost) == ("step-2-a1", True)
    assert durable_step(volume) == 2, "an unreadable checkpoint is still durable"


def test_a_save_that_is_durable_is_no_failure_where_nothing_can_be_deleted(volume, monkeypatch):
    first = begin_attempt(volume, 1, keepLast=1)
    first.save(1)
    unlink = Path.unlink

    def stale(path, **options):
        if path.name == MANIFEST:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", stale)
    with capture_logs() as logs:
        assert first.save(2).path.name == "step-2-a1"
    assert "not_pruned" in [line["event"] for line in logs]
    monkeypatch.undo()
    first.save(3)
    assert names(volume) == ["step-3-a1"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_with_nothing_but_damaged_checkpoints_does_not_begin_again(volume, damage):
    inflict, _ = DAMAGES[damage]
    inflict(begin_attempt(volume, 1).save(1))
    with pytest.raises(
        NoUsableCheckpoint, match=r"1 of 1 checkpoints are damaged or deleted in .*restore one .*resume: never"
    ) as no:
        resumption_of(volume).find()
    assert (no.value.exit_code, no.value.field) == (78, "spec.checkpoint.resume")


def test_data_without_manifest_never_was_a_checkpoint(volume):
    """A save that was cut off before its manifest."""
    first = begin_attempt(volume, 1)
    (first.save(1).path / MANIFEST).unlink()
    volume.newest_commit(1).unlink()
    assert [each.standing for each in survey(volume)] == ["unfinished"]
    assert resumption_of(volume).find() is None


def test_the_newest_checkpoint_is_not_forgotten_with_its_manifest_and_stays_for_whoever_restores_it(volume):
    first = begin_attempt(volume, 1, keepLast=1)
    only = first.save(1)
    manifest = (only.path / MANIFEST).read_bytes()
    (only.path / MANIFEST).unlink()
    with pytest.raises(NoUsableCheckpoint, match="1 of 1 checkpoints are damaged or deleted"):
        resumption_of(volume).find()
    (only.path / MANIFEST).write_bytes(manifest)
    newest = begin_attempt(volume, 2, keepLast=9).save(2)
    (newest.path / MANIFEST).unlink()
    third = begin_attempt(volume, 3, keepLast=9)
    assert third.found == only
    third.save(2)
    assert newest.path.is_dir()


def test_a_run_whose_checkpoints_all_lost_their_manifests_does_not_begin_again(volume):
    first = begin_attempt(volume, 1)
    whole, earlier, newest = first.save(1), first.save(2), first.save(3)
    (earlier.path / MANIFEST).unlink()
    (newest.path / MANIFEST).unlink()
    with capture_logs() as logs:
        assert resumption_of(volume).find() == whole
    said = [(line["path"], line["reason"]) for line in logs if line["event"] == "checkpoint_skipped"]
    assert said == [(str(each.path), "it has no manifest") for each in (earlier, newest)]
    first.save(4)
    with capture_logs() as logs:
        assert names([resumption_of(volume).find()]) == ["step-4-a1"]
    assert not logs, "older ones may be what a deletion has left that was cut short"
    shutil.rmtree(volume.checkpoint(4, 1))
    (whole.path / MANIFEST).unlink()
    with pytest.raises(NoUsableCheckpoint, match="4 of 4 checkpoints are damaged or deleted"):  # as many as are listed
        resumption_of(volume).find()


def test_a_checkpoint_counts_also_where_its_name_cannot_be_noted(volume, monkeypatch):
    first = begin_attempt(volume, 1, keepLast=1)
    first.save(1)

    def full(path, value):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoints_module, "write_json", full)
    first.save(2)
    monkeypatch.undo()
    assert [(each.path.name, each.standing, each.lost) for each in survey(volume)] == [("step-2-a1", "counts", False)]


def test_no_checkpoint_is_taken_of_a_model_that_nobody_could_load(volume):
    attempt = begin_attempt(volume, 1)
    attempt.save(1)
    (volume.root / "model" / "config.json").unlink()
    with pytest.raises(DataError, match=r"model/config.json is gone, .*: restore that folder"):
        attempt.save(2)
    assert names(volume) == ["step-1-a1"]
