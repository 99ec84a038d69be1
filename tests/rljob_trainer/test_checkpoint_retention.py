"""Which checkpoints stay, and what a removal leaves behind."""

import errno
import json
import os
import shutil

import pytest
from structlog.testing import capture_logs

from rljob_trainer.checkpoint.manifest import MANIFEST, Retention, list_checkpoints, survey
from rljob_trainer.checkpoint.retention import reasons_to_keep
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, names


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


def folders(volume):
    return sorted(path.name for path in volume.checkpoints.iterdir())


def test_each_rule_keeps_its_own(volume):
    first = begin_attempt(volume, 1, keepLast=9)
    for step, reward in [(10, 0.9), (20, 0.1), (30, 0.8), (40, None), (50, 0.2), (60, 0.3)]:
        first.save(step, reward)
    refs = list_checkpoints(volume)

    def kept(**rules):
        reasons = reasons_to_keep(refs, Retention(keep_last=1, **rules))
        return {int(path.name.split("-")[1]): why for path, why in reasons.items()}

    assert kept() == {60: "last"}
    assert kept(keep_every=20) == {20: "every 20", 40: "every 20", 60: "last, every 20"}
    assert kept(keep_best=2) == {10: "best", 30: "best", 60: "last"}
    assert kept(keep_best=9).keys() == {10, 20, 30, 50, 60}, "one without reward is no best one"
    assert reasons_to_keep(refs, Retention(keep_last=2)).keys() == {ref.path for ref in refs[-2:]}


def test_rewards_of_validation_and_training_are_not_compared(volume):
    first = begin_attempt(volume, 1, keepLast=9)
    first.save(1, 0.9)
    first.save(2, 0.1, validation_reward=0.2)
    first.save(3, 0.8, validation_reward=0.2)
    first.save(4, 0.1, validation_reward=0.1)
    reasons = reasons_to_keep(list_checkpoints(volume), Retention(keep_last=1, keep_best=1))
    assert [path.name for path, why in reasons.items() if why == "best"] == ["step-3-a1"], "of equal ones the newer"


def test_saving_prunes_by_the_jobs_rules(volume):
    first = begin_attempt(volume, 1, keepLast=1, keepEvery=3, keepBest=1)
    for step, reward in [(1, 0.1), (2, 0.9), (3, 0.2), (4, 0.3), (5, 0.4)]:
        first.save(step, reward)
    assert folders(volume) == ["step-2-a1", "step-3-a1", "step-5-a1"]
    first.save(6, 0.95)
    assert folders(volume) == ["step-3-a1", "step-6-a1"]


def test_a_resume_prunes_by_the_rules_of_now(volume):
    first = begin_attempt(volume, 1, keepLast=3)
    for step in (1, 2, 3):
        first.save(step)
    (volume.checkpoints / ".step-4-a1.part" / "ranks").mkdir(parents=True)
    shutil.copytree(volume.checkpoint(3, 1), volume.checkpoint(4, 1))
    (volume.checkpoint(4, 1) / MANIFEST).unlink()  # data without manifest
    begin_attempt(volume, 2, keepLast=1)
    assert folders(volume) == ["step-3-a1"]


def test_what_the_run_resumed_from_stays_where_newer_ones_are_damaged(volume):
    first = begin_attempt(volume, 1)
    for step in (1, 2):
        first.save(step)
    (volume.checkpoint(2, 1) / "trainer.json").unlink()
    assert begin_attempt(volume, 2, keepLast=1).found.path.name == "step-1-a1"
    assert folders(volume) == ["step-1-a1", "step-2-a1"], "a person may restore the other one"


def test_pruning_leaves_alone_what_later_attempts_write(volume):
    first = begin_attempt(volume, 1)
    for attempt in (1, 2):
        (volume.checkpoints / f".step-9-a{attempt}.part").mkdir(parents=True)
    first.checkpoints.prune()
    assert folders(volume) == [".step-9-a1.part", ".step-9-a2.part"]


def test_a_damaged_manifest_is_never_removed(volume):
    """Somebody may want to repair it."""
    first = begin_attempt(volume, 1, keepLast=1)
    damaged = first.save(1).path
    (damaged / MANIFEST).write_text("{")
    first.save(2)
    begin_attempt(volume, 2, keepLast=1).save(3)
    assert folders(volume) == ["step-1-a1", "step-3-a2"]


def test_a_removal_that_is_cut_short_leaves_nothing_that_counts(volume, monkeypatch):
    """A power cut in the middle of a deletion: the folder is half there, and no longer a checkpoint."""
    first = begin_attempt(volume, 1, keepLast=2)
    for step in (1, 2):
        first.save(step)

    def cut_short(path, **_):
        (path / "trainer.json").unlink()
        raise KeyboardInterrupt

    again = begin_attempt(volume, 2, keepLast=2)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", cut_short)
        patched.setattr(again.checkpoints, "_retention", Retention(keep_last=1))
        with pytest.raises(KeyboardInterrupt):
            again.checkpoints.prune()
    assert names(volume) == ["step-2-a1"]
    assert [each.standing for each in survey(volume)] == ["unfinished", "counts"]
    begin_attempt(volume, 3, keepLast=1)
    assert folders(volume) == ["step-2-a1"]


def test_clocks_change_nothing(volume):
    """The time in a manifest is for people: order, resume and retention go by steps and lineage."""
    first = begin_attempt(volume, 1, keepLast=9)
    for step, year in [(1, 2099), (2, 1970), (3, 2035)]:
        path = first.save(step).path / MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | {"time": f"{year}-01-01T00:00:00Z"}))
    assert names(volume) == ["step-1-a1", "step-2-a1", "step-3-a1"]
    second = begin_attempt(volume, 2, keepLast=2)
    assert second.found.manifest.step == 3
    assert names(volume) == ["step-2-a1", "step-3-a1"]


def test_one_that_cannot_be_deleted_keeps_no_other(volume, monkeypatch):
    """Else the volume would fill up."""
    first = begin_attempt(volume, 1, keepLast=9)
    stuck, needless, _ = (first.save(step).path for step in (1, 2, 3))
    unlink = type(stuck).unlink

    def fails(path, **options):
        if path == stuck / MANIFEST:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, **options)

    monkeypatch.setattr(type(stuck), "unlink", fails)
    monkeypatch.setattr(first.checkpoints, "_retention", Retention(keep_last=1))
    with capture_logs() as logs, pytest.raises(OSError, match=f"Input/output error: '{stuck}"):
        first.checkpoints.prune()
    assert folders(volume) == ["step-1-a1", "step-3-a1"]
    assert [line["path"] for line in logs] == [str(needless)]
    assert (stuck / "trainer.json").exists(), "what counts stays whole"
