"""Allows one `rljob run` at a time in a run's folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rljob_trainer.errors import FencedError
from rljob_trainer.local.file_lock import lock
from rljob_trainer.local.prepare import writable
from rljob_trainer.volume import Volume


@contextmanager
def only_run_in(volume: Volume) -> Iterator[None]:
    """Hold the folder's lock, which the kernel releases when this process ends, and delete older requests.

    Raises:
        FencedError: another process holds it; names its id.
    """
    path = volume.run_lock
    with writable(volume):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab+", buffering=0)
    with file:
        try:
            lock(file)
        except BlockingIOError:
            raise FencedError(
                f"process {path.read_text()} trains in {volume.root}; wait until it ends, or choose another --dir"
            ) from None
        with writable(volume):
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            volume.request.unlink(missing_ok=True)
        yield
