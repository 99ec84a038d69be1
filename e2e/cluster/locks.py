"""Locks between processes. The kernel drops a lock with the process that holds it, however that ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import ClusterError

MARKER = "lock"
"""The file that says that a folder is a cluster's, and the lock of a process that changes the cluster."""


@contextmanager
def locked(folder: Path, name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a cluster's lock, waiting for it. The folder is made if need be."""
    handle = acquire(folder, name, how)
    try:
        yield
    finally:
        os.close(handle)


def acquire(folder: Path, name: str, how: int) -> int:
    """A descriptor that holds the lock while it is open.

    A process that takes a cluster down removes its folder while others wait for a lock in it. They then get a lock
    on a file that no other process will find, so they try again.
    """
    while True:
        try:
            _claim(folder)
            handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(handle, how)
        if _is_at(handle, folder / name):
            return handle
        os.close(handle)


def is_cluster(folder: Path) -> bool:
    return (folder / MARKER).exists()


def _claim(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"{folder} cannot be a folder: {error.strerror}: give --dir another") from None
    if any(folder.iterdir()) and not is_cluster(folder):
        raise ClusterError(f"{folder} holds other files: give --dir a folder that does not exist, or an empty one")
    (folder / MARKER).touch(mode=0o600)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
