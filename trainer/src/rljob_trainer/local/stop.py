"""Who asked `rljob run` to stop, how, and what its driver is told."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from rljob_api.contract import ExitCode, ExitRecord
from rljob_trainer.local.machine import Child, kill_children


@dataclass(slots=True)
class Stop:
    """Whether somebody asked to stop: by a request, or by signals, of which the second means at once.

    signals: how many. signal: the last one. driver: who is told, once.
    """

    requested: bool = False
    signals: int = 0
    signal: int = 0
    driver: Child | None = None
    _untold: threading.Lock = field(default_factory=threading.Lock)

    @property
    def asked(self) -> bool:
        return self.requested or self.signals > 0

    def request(self) -> None:
        self.requested = True
        self._tell()

    def interrupt(self, number: int) -> None:
        self.signals, self.signal = self.signals + 1, number
        if self.signals > 1:
            kill_children()
        else:
            self._tell()

    def _tell(self) -> None:
        """A driver that is told twice does not save. The lock is for signals that come while this is going on."""
        if self.driver is not None and self._untold.acquire(blocking=False):
            self.driver.terminate()

    def record(self) -> ExitRecord:
        """Of a driver that was ended here because of it."""
        if self.signals < 2:
            return ExitRecord(code=ExitCode.STOPPED, reason="StoppedOnRequest", message="stopped before it trained")
        return ExitRecord(
            code=128 + self.signal,
            reason="Interrupted",
            message="stopped at once: rljob checkpoints lists what is saved",
        )


@contextmanager
def interrupts() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM are the driver's: the first asks it to save and stop.

    The second ends whatever runs here, at once: also what is waited for, such as a Ray that starts.
    """
    stop = Stop()

    def forward(number: int, _: FrameType | None) -> None:
        stop.interrupt(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
