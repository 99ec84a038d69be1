"""Whether a driver has died, as its own host knows it: the kernel gives a lock back however its holder ends.

A container that is started again has its host's name, so a pod whose driver was killed need not wait for it. Of other
hosts' drivers nobody can tell: many file systems keep locks to themselves.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog

from rljob_trainer.local.file_lock import is_locked, lock
from rljob_trainer.volume import Volume

log = structlog.get_logger()


@contextmanager
def present(volume: Volume, attempt: int) -> Iterator[None]:
    """Hold the lock of an attempt's driver, which writes its host's name into it. A volume without locks has none."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(volume.driver_lock(attempt).open("ab+", buffering=0))
            lock(file)
            file.truncate(0)
            file.write(socket.gethostname().encode())
        except OSError as error:
            log.info("driver_not_locked", reason=error.strerror)
        yield


def has_died(volume: Volume, attempt: int) -> bool:
    """False where nobody knows."""
    path = volume.driver_lock(attempt)
    try:
        return path.read_text() == socket.gethostname() and not is_locked(path)
    except OSError:
        return False
