"""Allows one `rljob run` at a time in a run's folder."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rljob_trainer.errors import FencedError
from rljob_trainer.local.file_lock import holding
from rljob_trainer.local.prepare import writable
from rljob_trainer.volume import Volume


@contextmanager
def only_run_in(volume: Volume) -> Iterator[None]:
    """Hold the folder's lock, which the kernel releases when this process ends, and delete older requests.

    Raises:
        FencedError: another process holds it; names its id.
    """
    path = volume.run_lock
    with ExitStack() as held:
        with writable(volume):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                held.enter_context(holding(path, str(os.getpid())))
            except BlockingIOError:
                raise FencedError(
                    f"process {path.read_text()} trains in {volume.root}; wait until it ends, or choose another --dir"
                ) from None
            volume.request.unlink(missing_ok=True)
        yield
