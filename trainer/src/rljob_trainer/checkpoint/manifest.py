"""Which checkpoints of a volume count. Light: no torch, so that the agent and `rljob status` can list them.

checkpoints/step-40-a1/
actor/          shards of policy, optimizer and reference (torch.distributed.checkpoint)
model/          config.json and tokenizer
trainer.json    step, data positions, KL controller: everything that is not a tensor
manifest.json   written last: sizes and hashes of all of the above. Without it the folder is no checkpoint.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.volume import Volume, write_json

MANIFEST = "manifest.json"
ACTOR = "actor"
MODEL = "model"
TRAINER = "trainer.json"

_NAME = re.compile(r"step-\d+-a\d+")
_UNFINISHED = re.compile(r"\.?step-\d+-a(\d+)(?:\.part)?")


class FileEntry(ApiModel):
    bytes: int = Field(description="Size.")
    sha256: str = Field(description="Hash of the content.")


class Manifest(ApiModel):
    """`manifest.json`."""

    step: int = Field(description="Step that the checkpoint was taken after.")
    attempt: int = Field(description="Attempt that wrote it.")
    time: datetime = Field(description="When it became durable.")
    reward: float | None = Field(None, description="Mean reward of that step; None for a supervised one.")
    files: dict[str, FileEntry] = Field(description="Every file, by its path below the checkpoint.")

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint that counts."""

    path: Path
    manifest: Manifest


def list_checkpoints(volume: Volume) -> list[CheckpointRef]:
    """All checkpoints with a manifest, oldest first; folders without one were never finished and do not count."""
    if not volume.checkpoints.is_dir():
        return []
    found = [ref for folder in volume.checkpoints.iterdir() if _NAME.fullmatch(folder.name) for ref in _read(folder)]
    return sorted(found, key=lambda ref: (ref.manifest.step, ref.manifest.attempt))


def unreadable_checkpoints(volume: Volume) -> list[Path]:
    """Folders that once counted: they have a manifest, but it cannot be read. Whoever begins anew must know of them."""
    readable = {ref.path for ref in list_checkpoints(volume)}
    return [path.parent for path in volume.checkpoints.glob(f"step-*/{MANIFEST}") if path.parent not in readable]


def _read(folder: Path) -> Iterator[CheckpointRef]:
    try:
        yield CheckpointRef(folder, Manifest.model_validate_json((folder / MANIFEST).read_text()))
    except (OSError, ValueError):
        return


def commit(staged: Path, target: Path, *, step: int, attempt: int, reward: float | None) -> CheckpointRef:
    """Make `staged`, a finished folder beside it, the checkpoint `target`. The manifest is the one commit point.

    Raises OSError where the volume fails, or where `target` counts already.
    """
    manifest = Manifest(step=step, attempt=attempt, time=datetime.now(UTC), reward=reward, files=_entries(staged))
    if not (target / MANIFEST).exists():  # the remains, if any, of a commit that did not get as far as its manifest
        shutil.rmtree(target, ignore_errors=True)
    staged.rename(target)
    _sync_folder(target.parent)
    write_json(target / MANIFEST, manifest.model_dump(mode="json", by_alias=True))
    _sync_folder(target)
    return CheckpointRef(target, manifest)


def verify(ref: CheckpointRef) -> None:
    """Raises InfrastructureError naming the first file that is missing, or is not what the manifest says."""
    with ThreadPoolExecutor() as pool:
        for problem in pool.map(lambda file: _problem(ref.path, *file), ref.manifest.files.items()):
            if problem:
                raise InfrastructureError(f"checkpoint {ref.path.name}: {problem}")


def prune(volume: Volume, keep_last: int) -> list[Path]:
    """Delete all but the newest `keep_last` checkpoints, and what attempts before the newest one's left unfinished.

    Returns the checkpoints that were deleted.
    """
    refs = list_checkpoints(volume)
    old = [ref.path for ref in refs[:-keep_last]]
    for path in old:
        (path / MANIFEST).unlink()  # first: a folder half deleted must not count
        _sync_folder(path)
    for path in [*old, *_unfinished(volume, before=refs[-1].manifest.attempt if refs else 0)]:
        shutil.rmtree(path)
    return old


def _unfinished(volume: Volume, before: int) -> list[Path]:
    named = ((path, _UNFINISHED.fullmatch(path.name)) for path in volume.checkpoints.glob("*step-*"))
    return [path for path, name in named if name and int(name[1]) < before and not (path / MANIFEST).exists()]


def read_trainer_state(ref: CheckpointRef) -> dict[str, object]:
    state: dict[str, object] = json.loads((ref.path / TRAINER).read_text())
    return state


def _entries(folder: Path) -> dict[str, FileEntry]:
    """Every file below `folder`, made durable; several at a time, for hashing is the slow part of a large one."""
    paths = sorted(folder.rglob("*"))
    files = [path for path in paths if path.is_file()]
    with ThreadPoolExecutor() as pool:
        entries = dict(zip((str(path.relative_to(folder)) for path in files), pool.map(_entry, files), strict=True))
    for path in [folder, *(path for path in paths if path.is_dir())]:
        _sync_folder(path)
    return entries


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return FileEntry(bytes=path.stat().st_size, sha256=_hash(path))


def _problem(folder: Path, name: str, entry: FileEntry) -> str | None:
    """What is wrong with a file, if anything."""
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    if path.stat().st_size != entry.bytes or _hash(path) != entry.sha256:
        return f"{name} is damaged"
    return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
