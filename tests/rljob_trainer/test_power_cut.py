"""What a power cut leaves: whatever counts is on the disk, and so is all that it rests on."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.attempt.claim import claim, record_exit
from rljob_trainer.checkpoint.files import FileEntry
from rljob_trainer.checkpoint.manifest import MANIFEST
from rljob_trainer.errors import FencedError
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import FileRanks, begin_attempt, save, write_steps


class Disk:
    """What was synced of each file (its content) and of each folder (its names), by inode.

    moves: of every rename, where to, and what below it was not on the disk then.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moves: list[tuple[Path, list[str]]] = []
        self.named: set[Path] = set()
        self._synced: dict[int, object] = {}
        self._lock = threading.Lock()
        fsync = os.fsync

        def seen(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            with self._lock:
                self._synced[path.stat().st_ino] = _state(path)

        monkeypatch.setattr(os, "fsync", seen)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._moving(getattr(os, name)))

    def _moving(self, move: Callable[..., None]) -> Callable[..., None]:
        def moving(source: Any, target: Any, **options: Any) -> None:
            self.moves.append((Path(target), self.unsynced(Path(source))))
            if self.knows(Path(target).parent):
                self.named.add(Path(target))
            move(source, target, **options)

        return moving

    def unsynced(self, path: Path) -> list[str]:
        """Names of what a power cut would lose or change, at `path` and below."""
        everything = [path, *path.rglob("*")] if path.is_dir() else [path]
        return [each.name for each in everything if self._synced.get(each.stat().st_ino) != _state(each)]

    def knows(self, path: Path) -> bool:
        """Whether it would be found by its name."""
        names = self._synced.get(path.parent.stat().st_ino)
        return isinstance(names, dict) and names.get(path.name) == path.stat().st_ino


def _state(path: Path) -> object:
    return {each.name: each.stat().st_ino for each in path.iterdir()} if path.is_dir() else path.read_bytes()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path / "run")


def test_a_commit_has_each_part_on_the_disk_before_the_next(volume: Volume, disk: Disk):
    first = begin_attempt(volume, 1)
    write_steps(volume, 1, range(1, 3))
    disk.moves.clear()
    path = first.save(2).path
    assert [target for target, _ in disk.moves] == [path, path / MANIFEST, volume.newest_commit(1)]
    assert [missing for _, missing in disk.moves] == [[], [], []], "all that is renamed is on the disk"
    assert path / MANIFEST in disk.named, "and the folder's name, before it counts"
    assert disk.knows(volume.checkpoints)
    assert disk.unsynced(volume.checkpoints) == [], "and in the end all of it"


def test_what_an_attempt_is_and_how_it_ended_is_on_the_disk(volume: Volume, disk: Disk):
    """Without its decision its checkpoints, which are on the disk, would be of no run."""
    begin_attempt(volume, 1)
    assert disk.knows(volume.attempts)
    assert disk.unsynced(volume.attempts) == []
    begin_attempt(volume, 2).save(1)
    record_exit(volume, 2, None)
    assert disk.unsynced(volume.attempts) == []


def test_the_progress_may_be_lost(volume: Volume, disk: Disk):
    """It is written several times a second."""
    with ProgressReporter(volume):
        pass
    assert [(target, missing) for target, missing in disk.moves if missing] == [], "but it is never half written"
    assert disk.unsynced(volume.control) == ["control"]


class SupersededRanks(FileRanks):
    """Somebody takes over while they write."""

    def __init__(self, volume: Volume) -> None:
        super().__init__()
        self._volume = volume

    def finish_save(self) -> list[dict[str, FileEntry]]:
        claim(self._volume, 2)
        return super().finish_save()


def test_who_was_superseded_during_a_save_commits_nothing(volume: Volume):
    first = begin_attempt(volume, 1)
    with pytest.raises(FencedError):
        save(first.checkpoints, 1, {"step": 1}, 0.5, SupersededRanks(volume))
    assert list(volume.checkpoints.iterdir()) == []
