"""A file lock that the kernel releases when the holder exits or dies.

It is an open-file-description lock (fcntl(2)): other processes can test it without taking it, from any container that
mounts the file.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import IO, Final

_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, pid
_WHOLE_FILE: Final = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock(file: IO[bytes]) -> None:
    """Lock `file` until it is closed. Raises BlockingIOError if another process holds the lock."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)


def is_locked(path: Path) -> bool:
    """Raises OSError if the file cannot be read or its file system does not support locks."""
    with path.open("rb") as file:
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE))[0]
        return kind != fcntl.F_UNLCK
