"""A deadline and signals for ray.init, which ignores signals and may wait for ever: a thread handles both."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rljob_trainer.attempt.interrupt import STOP_SIGNALS, STOPPED_EARLY
from rljob_trainer.errors import InfrastructureError, RLJobError, StoppedOnRequest

LOOK_SECONDS = 0.05


@contextmanager
def bounded(seconds: float, waits_for: str, record: Callable[[RLJobError], object]) -> Iterator[None]:
    """Exit the process if the block takes longer, or if a stop signal arrives meanwhile.

    record: called with the reason before the process exits with the error's exit code. Call while signals are held.
    """
    done = Event()

    def watch() -> None:
        error = _trouble(done, seconds, waits_for)
        if error is not None:
            record(error)
            os._exit(error.exit_code)

    watcher = Thread(target=watch, name="connecting", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _trouble(done: Event, seconds: float, waits_for: str) -> RLJobError | None:
    """Wait for `done`, a signal or the deadline. Seconds in which this process was frozen do not count."""
    passed = 0.0
    while not done.is_set():
        if signal.sigtimedwait(STOP_SIGNALS, LOOK_SECONDS):
            return StoppedOnRequest(STOPPED_EARLY)
        passed += LOOK_SECONDS
        if passed > seconds:
            return InfrastructureError(f"waited {seconds:.0f} s for {waits_for}")
    return None
