"""A lock on a file, which the kernel gives back when its holder ends, however it ends.

An open-file-description lock (fcntl(2)): others can ask for it without taking it, from any container that has the file.
"""

import fcntl
import os
import struct
from pathlib import Path
from typing import IO, Final

_FLOCK: Final = "hhqqi4x"  # struct flock: type, whence, start, length, pid
_WHOLE_FILE: Final = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def lock(file: IO[bytes]) -> None:
    """Until it is closed. Raises BlockingIOError where somebody else holds it."""
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)


def is_locked(path: Path) -> bool:
    """Raises OSError where the file cannot be read, or its file system does not say."""
    with path.open("rb") as file:
        kind: int = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE))[0]
        return kind != fcntl.F_UNLCK
