"""A cluster for as long as any process wants it: started by the first, and taken down after the last.

Each user holds a shared lock, which the kernel drops with him, also when he is killed. A process of its own, the
guard, waits until it gets that lock alone, and then takes the cluster down.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import locks, processes
from e2e.cluster.plane import Plane

USERS = "users"
"""The lock's file."""


@contextmanager
def shared(
    folder: Path, nodes: int = 4, gpus: int = 8, kubelets: int = 0, kueue: bool = False, gang: str = ""
) -> Iterator[Plane]:
    """The arguments are those of Plane.up."""
    plane = Plane(folder)
    with locks.locked(folder, USERS, fcntl.LOCK_SH):
        _start_guard(folder)
        plane.up(nodes, gpus, kubelets, kueue, gang)
        yield plane


def guard(folder: Path) -> None:
    """Ends with the cluster."""
    locks.acquire(folder, USERS, fcntl.LOCK_EX)  # and keep it: the next user waits until this process has ended
    Plane(folder).down()


def _start_guard(folder: Path) -> None:
    """One for each user, for a user cannot know whether another's is about to end; `down` ends them all."""
    command = [sys.executable, "-m", "e2e.cluster", "guard", f"--dir={folder}"]
    variables = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    processes.start(folder, "guard", command, folder / "guard.log", variables)
