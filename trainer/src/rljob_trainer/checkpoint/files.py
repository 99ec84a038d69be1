"""Sizes and hashes of a checkpoint's files, and fsync. Light."""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from pydantic import Field

from rljob_api.v1alpha1.base import ApiModel
from rljob_trainer.volume import sync_folder

_CHUNK_BYTES = 8 << 20
"""Read at once. Each chunk takes the GIL from the training thread twice."""


class FileEntry(ApiModel):
    bytes: int = Field(description="Size.")
    sha256: str = Field(description="Hash of the content.")


def entries(folder: Path, paths: Iterable[Path]) -> dict[str, FileEntry]:
    """Fsync each file; return size and hash by its path below `folder`. Raises OSError."""
    files = sorted(paths)
    with ThreadPoolExecutor() as pool:
        return dict(zip((str(path.relative_to(folder)) for path in files), pool.map(_entry, files), strict=True))


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def sync_folders(folder: Path) -> None:
    """Fsync `folder` and all folders below it."""
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        sync_folder(path)


def first_problem(folder: Path, expected: Mapping[str, FileEntry]) -> str | None:
    """Read every file; describe the first that is missing or differs, None if all are intact. Raises OSError.

    A link, a device or a name that leaves the folder is a problem: it would lead to what is no part of the checkpoint.
    """
    strange = (str(path.relative_to(folder)) for path in folder.rglob("*") if not _is_plain(path))
    outside = (name for name in expected if Path(name).is_absolute() or ".." in Path(name).parts)
    if (name := next(chain(strange, outside), None)) is not None:
        return f"{name} is no file of its own"
    with ThreadPoolExecutor() as pool:
        found = pool.map(lambda item: _problem(folder, *item), expected.items())
        return next((problem for problem in found if problem), None)


def _is_plain(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _entry(path: Path) -> FileEntry:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return FileEntry(bytes=path.stat().st_size, sha256=_hash(path))


def _problem(folder: Path, name: str, entry: FileEntry) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    whole = path.stat().st_size == entry.bytes and _hash(path) == entry.sha256
    return None if whole else f"{name} is damaged"


def _hash(path: Path) -> str:
    digest, chunk = hashlib.sha256(), memoryview(bytearray(min(_CHUNK_BYTES, max(1, path.stat().st_size))))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(chunk):
            digest.update(chunk[:size])
    return digest.hexdigest()
