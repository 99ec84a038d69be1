"""A file lock that the kernel releases when the holder exits or dies.

It is an open-file-description lock (fcntl(2)): other processes can test it without taking it, from any container that
mounts the file.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, pid
_WHOLE_FILE: Final = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@contextmanager
def holding(path: Path, text: str) -> Iterator[None]:
    """Hold the lock of a file, which contains `text` from then on.

    Raises BlockingIOError if another process holds it, OSError if the file system fails or has no locks.
    """
    with path.open("ab+", buffering=0) as file:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        file.truncate(0)
        file.write(text.encode())
        yield


def is_locked(path: Path) -> bool:
    """Raises OSError if the file cannot be read or its file system does not support locks."""
    with path.open("rb") as file:
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE))[0]
        return kind != fcntl.F_UNLCK
