"""Finds what was made and used before."""

import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rljob_trainer.errors import on_volume
from rljob_trainer.journal.files import JournalFile, list_files
from rljob_trainer.journal.frames import read_frames
from rljob_trainer.journal.record import (
    Made,
    MadeKey,
    Used,
    decode_made,
    decode_used,
    key_of,
    made_key,
    read_header,
)
from rljob_trainer.types import Task
from rljob_trainer.volume import Volume


@dataclass(frozen=True, slots=True, order=True)
class _Location:
    """Where a record is. A later location comes after an earlier one."""

    attempt: int
    version: int
    offset: int
    path: Path


@dataclass(slots=True)
class _Progress:
    """How far a file was read. rest: bytes after that. damaged: records before that."""

    end: int = 0
    rest: int = 0
    damaged: int = 0


class Journal:
    """The records on a volume. For one thread.

    If an episode is recorded twice, the last record of the newest attempt counts: its writer had not used the first.
    """

    def __init__(self, volume: Volume, attempt: int, from_version: int) -> None:
        self._volume, self._attempt, self._from_version = volume, attempt, from_version
        self._files: dict[Path, _Progress] = {}
        self._made: dict[MadeKey, dict[_Location, dict[int, str]]] = defaultdict(dict)
        self._used: dict[str, tuple[_Location, Used]] = {}

    @classmethod
    def read(cls, volume: Volume, attempt: int, from_version: int) -> Self:
        """Index what `attempt` and the attempts before it recorded since `from_version`.

        Raises:
            InfrastructureError: the volume cannot be read.
        """
        journal = cls(volume, attempt, from_version)
        journal.refresh()
        return journal

    def refresh(self) -> None:
        """Index what was appended meanwhile, and forget what was truncated. Raises as read()."""
        with _readable():
            files = [file for file in list_files(self._volume) if self._counts(file)]
            self._forget_others({file.path for file in files})
            for file in files:
                self._index(file)

    def find(self, task: Task, sample: int, fingerprint: str, allowed: Mapping[int, str]) -> Made | None:
        """The episode `sample` of `task`, if policies among `allowed` ({version: digest}) made it under these settings.

        Raises:
            InfrastructureError: the volume cannot be read.
        """
        key = made_key(task, sample, fingerprint)
        fitting = [where for where, policies in self._made.get(key, {}).items() if policies.items() <= allowed.items()]
        record = _read_record(max(fitting)) if fitting else None
        if record is None or key_of(read_header(record))[0] != key:  # truncated meanwhile, and perhaps begun again
            return None
        return decode_made(record, task)

    def used(self, digest: str, fingerprint: str) -> Used | None:
        """What the update of the policy `digest` used, if that update was begun under these settings."""
        _, used = self._used.get(digest, (None, None))
        return used if used is not None and used.fingerprint == fingerprint else None

    @property
    def torn(self) -> int:
        """Files that end in an unfinished record, or that cannot be read behind a damaged head."""
        return sum(each.rest > 0 for each in self._files.values())

    @property
    def damaged(self) -> int:
        """Records whose checksum is wrong; they are left out."""
        return sum(each.damaged for each in self._files.values())

    @property
    def incomplete(self) -> list[Path]:
        """Files with a torn or a damaged record; what they lack is generated again."""
        return sorted(path for path, each in self._files.items() if each.rest or each.damaged)

    def __len__(self) -> int:
        """Episodes that can be found."""
        return len(self._made)

    def _counts(self, file: JournalFile) -> bool:
        return file.attempt <= self._attempt and file.version >= self._from_version

    def _forget_others(self, paths: set[Path]) -> None:
        if self._files.keys() <= paths:
            return
        self._files = {path: each for path, each in self._files.items() if path in paths}
        for key, places in list(self._made.items()):
            self._made[key] = {where: policies for where, policies in places.items() if where.path in paths}
            if not self._made[key]:
                del self._made[key]
        self._used = {digest: found for digest, found in self._used.items() if found[0].path in paths}

    def _index(self, file: JournalFile) -> None:
        state = self._files.setdefault(file.path, _Progress())
        with file.path.open("rb") as opened:
            for frame in read_frames(opened, state.end):
                state.end = frame.end
                if frame.payload is None:
                    state.damaged += 1
                else:
                    self._add(_Location(file.attempt, file.version, frame.offset, file.path), frame.payload)
            state.rest = os.fstat(opened.fileno()).st_size - state.end

    def _add(self, where: _Location, record: bytes) -> None:
        header = read_header(record)
        if header["kind"] == "made":
            key, policies = key_of(header)
            self._made[key][where] = policies
            return
        used = decode_used(header)
        before = self._used.get(used.digest)
        if before is None or before[0] < where:
            self._used[used.digest] = where, used


def _read_record(where: _Location) -> bytes | None:
    """The record, or None if it is gone or was damaged meanwhile."""
    with _readable(), suppress(FileNotFoundError), where.path.open("rb") as file:
        found = next(read_frames(file, where.offset), None)
        return found.payload if found else None
    return None


def _readable() -> AbstractContextManager[None]:
    return on_volume("the rollout journal cannot be read")
