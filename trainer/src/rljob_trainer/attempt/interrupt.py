"""A driver's SIGTERM and SIGINT."""

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
    """Block stop signals until Interrupt.listen, in this thread and in threads that it starts.

    Call it before any thread starts, because the kernel delivers a signal to any thread that does not block it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


@dataclass(slots=True)
class Interrupt:
    """The first signal requests a checkpoint and a stop after the current step; before the loop it ends the attempt.

    The second signal ends the process.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    starting: bool = True

    def listen(self) -> None:
        """Handle signals from now on. Raises StoppedOnRequest if one is pending."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Hold signals back in the block: Ray installs handlers of its own, which abort the process."""
        hold_signals()
        try:
            yield
        finally:
            self.listen()

    def wait_for_steps(self) -> None:
        """From now on the loop checks `asked`, and signals do not raise."""
        self.starting = False

    def end_start(self) -> bool:
        """From now on signals do not raise. Returns whether a signal has ended the start."""
        ended, self.starting = self.asked.is_set() and self.starting, False
        return ended

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(128 + number)
        self.asked.set()
        if self.starting:
            raise StoppedOnRequest(STOPPED_EARLY)
