"""What SIGTERM and SIGINT do to a driver."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from rljob_trainer.errors import StoppedOnRequest

STOPPED_EARLY: Final = "stopped before the first step of this attempt"

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def hold_signals() -> None:
    """Let them wait until Interrupt.listen. Threads that are started meanwhile never get any.

    Call it before any thread is started: the system gives a signal to whichever thread takes it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


@dataclass(slots=True)
class Interrupt:
    """The first signal asks to save and stop after the step that runs; before the loop runs there is nothing to save,
    and it ends the attempt. The second ends the process.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    starting: bool = True

    def listen(self) -> None:
        """From now on. Raises StoppedOnRequest where one came already."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """For code that puts handlers of its own in place: Ray's abort the process while it connects.

        Who asks to stop meanwhile waits as long as that takes, unless somebody takes the signal (connecting.py).
        """
        hold_signals()
        try:
            yield
        finally:
            self.listen()

    def wait_for_steps(self) -> None:
        """From now on, a step runs and somebody looks whether `asked` is set."""
        self.starting = False

    def end_start(self) -> bool:
        """From now on, nothing is interrupted. Returns whether a signal has ended the start."""
        ended, self.starting = self.asked.is_set() and self.starting, False
        return ended

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(128 + number)
        self.asked.set()
        if self.starting:
            raise StoppedOnRequest(STOPPED_EARLY)
