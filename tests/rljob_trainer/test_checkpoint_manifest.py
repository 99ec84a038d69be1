"""A checkpoint counts from the moment of its manifest, as long as every file is what the manifest says."""

import json
import shutil
from dataclasses import replace

import pytest

from rljob_trainer.checkpoint.files import FileEntry
from rljob_trainer.checkpoint.manifest import (
    MANIFEST,
    commit,
    list_checkpoints,
    read_trainer_state,
    survey,
    verify,
)
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.volume import Volume


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


def staged(volume, step, attempt=1):
    folder = volume.checkpoints / f".step-{step}-a{attempt}.part"
    (folder / "ranks").mkdir(parents=True)
    (folder / "ranks" / "__0_0.distcp").write_bytes(bytes(range(256)) * step)
    (folder / "trainer.json").write_text(json.dumps({"step": step}))
    return folder


def committed(volume, step, attempt=1, reward=0.5):
    target = volume.checkpoint(step, attempt)
    return commit(staged(volume, step, attempt), target, step=step, attempt=attempt, reward=reward)


def standings(volume):
    return {each.path.name: each.standing for each in survey(volume)}


def names(refs):
    return [ref.path.name for ref in refs]


def test_a_commit_is_listed_whole(volume):
    ref = committed(volume, 3)
    assert names(list_checkpoints(volume)) == ["step-3-a1"]
    listed = list_checkpoints(volume)[0]
    assert listed == ref
    assert listed.manifest.files.keys() == {"ranks/__0_0.distcp", "trainer.json"}
    assert listed.manifest.bytes == 3 * 256 + len('{"step": 3}')
    assert (listed.manifest.step, listed.manifest.attempt, listed.manifest.reward) == (3, 1, 0.5)
    assert read_trainer_state(listed) == {"step": 3}
    verify(listed)


def test_checkpoints_are_ordered_by_step_and_attempt(volume):
    for step, attempt in [(10, 2), (9, 3), (10, 1), (100, 1)]:
        committed(volume, step, attempt)
    assert names(list_checkpoints(volume)) == ["step-9-a3", "step-10-a1", "step-10-a2", "step-100-a1"]


def test_a_folder_without_manifest_does_not_count(volume):
    assert list_checkpoints(volume) == []
    staged(volume, 1)
    shutil.copytree(committed(volume, 2).path, volume.checkpoint(3, 1))
    (volume.checkpoint(3, 1) / MANIFEST).unlink()
    shutil.copytree(volume.checkpoint(2, 1), volume.checkpoints / "copy-of-step-2")
    assert names(list_checkpoints(volume)) == ["step-2-a1"]
    assert standings(volume) == {"step-2-a1": "counts", "step-3-a1": "unfinished"}


def test_a_commit_replaces_what_an_earlier_try_left(volume):
    remains = volume.checkpoint(6, 1)
    remains.mkdir(parents=True)
    (remains / "half").touch()
    verify(committed(volume, 6))
    assert not (remains / "half").exists()


def test_a_commit_never_replaces_a_checkpoint(volume):
    first = committed(volume, 7, reward=0.1)
    with pytest.raises(OSError, match="not empty"):
        committed(volume, 7, reward=0.9)
    verify(first)
    assert list_checkpoints(volume)[0].manifest.reward == 0.1


def test_files_that_others_wrote_keep_their_hashes(volume):
    written = {"ranks/__0_0.distcp": FileEntry(bytes=256, sha256="of rank 0")}
    ref = commit(staged(volume, 1), volume.checkpoint(1, 1), step=1, attempt=1, reward=None, written=written)
    assert ref.manifest.files.keys() == {"ranks/__0_0.distcp", "trainer.json"}
    assert ref.manifest.files["ranks/__0_0.distcp"].sha256 == "of rank 0"


@pytest.mark.parametrize("written", [{"ranks/__1_0.distcp": 256}, {"ranks/__0_0.distcp": 255}])
def test_a_rank_that_writes_into_another_folder_is_noticed(volume, written):
    """A volume that is not shared between the nodes."""
    entries = {name: FileEntry(bytes=size, sha256="") for name, size in written.items()}
    with pytest.raises(InfrastructureError, match=r"cannot see ranks/__\d_0.distcp"):
        commit(staged(volume, 1), volume.checkpoint(1, 1), step=1, attempt=1, reward=None, written=entries)
    assert survey(volume) == []


@pytest.mark.parametrize("place", ["metrics.jsonl", "ranks/more", "model"])
def test_a_link_is_not_followed_out_of_a_checkpoint(volume, place, tmp_path):
    """An export or a resumed run would copy what it leads to."""
    ref = committed(volume, 1)
    (tmp_path / "secret").write_text("key")
    (ref.path / place).symlink_to(tmp_path / "secret")
    with pytest.raises(InfrastructureError, match=place):
        verify(ref)


def test_a_manifest_does_not_name_files_outside(volume):
    ref = committed(volume, 1)
    files = {**ref.manifest.files, "../step-1-a1/trainer.json": ref.manifest.files["trainer.json"]}
    with pytest.raises(InfrastructureError, match=r"\.\./step-1-a1"):
        verify(replace(ref, manifest=ref.manifest.model_copy(update={"files": files})))
