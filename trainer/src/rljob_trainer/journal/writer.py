"""Appends records to the journal.

    append (any thread) ── lock ── one write() ──> file        a killed process loses nothing that was written
    syncing thread      ── fsync of every file written since the last round, then close of those no longer needed
    sync (any thread)   ── waits until what was appended before is durable

Made records do not wait for the disk: a lost machine costs what was written since the last fsync, which is generated
again. A Used record does: its Made are durable first.
"""

import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from rljob_trainer.errors import InfrastructureError, RLJobError, on_volume
from rljob_trainer.journal.frames import MAGIC, frame, readable_end
from rljob_trainer.volume import Volume, sync_folder

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class _File:
    """An open file.

    begun: it has the magic. written: since the last fsync. named: its folders are durable. retired: to be closed.
    """

    path: Path
    version: int
    descriptor: int
    begun: bool = False
    written: bool = False
    named: bool = False
    retired: bool = False


class JournalWriter:
    """Writes records of any attempt and version, each into its own file. One writer for an attempt at a time.

    A process that died while writing leaves a torn record; opening its file drops that record and logs it.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._lock = threading.Lock()
        self._current: dict[Path, _File] = {}
        self._unsynced: list[_File] = []
        self._work = threading.Event()
        self._synced = threading.Condition(self._lock)
        self._appended = self._durable = 0  # appends so far, and those that are durable
        self._closed = False
        self._failure: RLJobError | None = None
        self._thread = threading.Thread(target=self._sync_forever, name="journal-sync", daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether an fsync failed: what the system then has of the files is unknown, so this writer writes no more."""
        return self._failure is not None

    def append(self, records: Sequence[bytes], attempt: int, version: int) -> None:
        """Write records, all in one write. Safe from many threads at once.

        version: the newest policy, which decides the file.
        Raises:
            StorageFullError: the volume is full.
            InfrastructureError: it failed otherwise, now or in an earlier fsync.
        """
        data = b"".join(frame(record) for record in records)
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise InfrastructureError("the rollout journal is closed")
            with self._explained():
                self._write(self._volume.journal(attempt, version), version, data)
            self._appended += 1
        self._work.set()

    def sync(self) -> None:
        """Wait until everything that was appended before is durable. Raises as append()."""
        with self._synced:
            wanted = self._appended
            self._synced.wait_for(lambda: self._durable >= wanted or self._failure is not None)
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Make everything durable and close the files. Raises as append()."""
        with self._lock:
            self._closed = True
            for path in list(self._current):
                self._retire(path)
        self._work.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- under the lock

    def _write(self, path: Path, version: int, data: bytes) -> None:
        file = self._current.get(path) or self._open(path, version)
        try:
            _write_all(file.descriptor, data if file.begun else MAGIC + data)
        except OSError:
            self._retire(path)  # a part may be in the file: opening it again drops that
            raise
        file.begun = True
        if not file.written:
            file.written = True
            self._unsynced.append(file)

    def _open(self, path: Path, version: int) -> _File:
        for other in [file.path for file in self._current.values() if file.version != version]:
            self._retire(other)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _File(path, version, os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666))
        try:
            _repair(file)
        except OSError:
            os.close(file.descriptor)
            raise
        self._current[path] = file
        return file

    def _retire(self, path: Path) -> None:
        file = self._current.pop(path)
        file.retired = True
        if not file.written:
            self._unsynced.append(file)

    # ---- the syncing thread, the only one that closes

    def _sync_forever(self) -> None:
        while not self._closed or self._unsynced:
            self._work.wait()
            self._work.clear()
            self._sync()

    def _sync(self) -> None:
        with self._lock:
            appended = self._appended
            files, self._unsynced = self._unsynced, []
            for file in files:
                file.written = False
            retired = [file for file in files if file.retired]
        try:
            with self._explained():
                for file in files:
                    _sync_file(file)
        except RLJobError as error:
            self._failure = error
        for file in retired:
            os.close(file.descriptor)
        with self._synced:
            self._durable = appended
            self._synced.notify_all()

    def _explained(self) -> AbstractContextManager[None]:
        return on_volume(f"the rollout journal on {self._volume.root} cannot be written")


def _repair(file: _File) -> None:
    """Cut off what a dead writer left unfinished."""
    with file.path.open("rb") as reader:
        end = readable_end(reader)
        size = os.fstat(reader.fileno()).st_size
    if end < size:
        log.warning("journal_tail_dropped", file=str(file.path), bytes=size - end)
        os.ftruncate(file.descriptor, end)
    file.begun = end > 0


def _write_all(descriptor: int, data: bytes) -> None:
    """One write(), unless the system takes only a part: a volume that fills up, or more than 2 GiB."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_file(file: _File) -> None:
    os.fsync(file.descriptor)
    if not file.named:
        for folder in file.path.parents[:3]:  # a<n>, journal, and the volume that it lies on
            sync_folder(folder)
        file.named = True
