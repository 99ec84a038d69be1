"""Folders for temporary files that only this user can read, and whose names no other user could take first."""

import os
import stat
import tempfile
from pathlib import Path


def new_private_folder(prefix: str) -> Path:
    """An empty folder of mode 0700 in the system's folder for temporary files. Raises OSError."""
    return Path(tempfile.mkdtemp(prefix=prefix))


def read_private(path: Path) -> str:
    """The content of a file in a private folder of this user.

    Raises PermissionError if the folder or the file belongs to another user, or others can write there; OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor) as file:
        for what, status in ((path.parent, path.parent.lstat()), (path, os.fstat(descriptor))):
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError(f"{what} belongs to another user, or others can write to it; remove it")
        return file.read()
