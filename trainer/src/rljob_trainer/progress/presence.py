"""Whether a driver on this host has died: the kernel releases its file lock however it ends.

A restarted container keeps its host name, so it need not wait for a killed driver. Drivers of other hosts are unknown,
because many file systems do not share locks between hosts.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog

from rljob_trainer.local.file_lock import holding, is_locked
from rljob_trainer.volume import Volume

log = structlog.get_logger()


@contextmanager
def present(volume: Volume, attempt: int) -> Iterator[None]:
    """Hold the lock file of an attempt's driver, which contains the host name. No effect on a volume without locks."""
    with ExitStack() as stack:
        try:
            stack.enter_context(holding(volume.driver_lock(attempt), socket.gethostname()))
        except OSError as error:
            log.info("driver_not_locked", reason=error.strerror)
        yield


def has_died(volume: Volume, attempt: int) -> bool:
    """Whether the attempt's driver ran on this host and has died; False if unknown."""
    path = volume.driver_lock(attempt)
    try:
        return path.read_text() == socket.gethostname() and not is_locked(path)
    except OSError:
        return False
