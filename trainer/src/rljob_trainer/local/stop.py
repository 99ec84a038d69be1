"""Requests and signals that stop `rljob run`, and how they reach its driver."""

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
    """Whether a request or a signal asked to stop. A second signal stops at once.

    signals: how many were received. signal: the last one. driver: receives SIGTERM, once.
    """

    requested: bool = False
    signals: int = 0
    signal: int = 0
    driver: Child | None = None
    _unsent: threading.Lock = field(default_factory=threading.Lock)

    @property
    def asked(self) -> bool:
        return self.requested or self.signals > 0

    def request(self) -> None:
        self.requested = True
        self._terminate()

    def interrupt(self, number: int) -> None:
        self.signals, self.signal = self.signals + 1, number
        if self.signals > 1:
            kill_children()
        else:
            self._terminate()

    def _terminate(self) -> None:
        """A driver that receives SIGTERM twice does not save. The lock covers signals that arrive meanwhile."""
        if self.driver is not None and self._unsent.acquire(blocking=False):
            self.driver.terminate()

    def record(self) -> ExitRecord:
        """The exit record of a driver that was stopped before it could write one."""
        if self.signals < 2:
            return ExitRecord(code=ExitCode.STOPPED, reason="StoppedOnRequest", message="stopped before it trained")
        return ExitRecord(
            code=128 + self.signal,
            reason="Interrupted",
            message="stopped at once; rljob checkpoints lists what is saved",
        )


@contextmanager
def interrupts() -> Iterator[Stop]:
    """Forward Ctrl-C and SIGTERM: the first asks the driver to save and stop, the second kills all children at once."""
    stop = Stop()

    def forward(number: int, _: FrameType | None) -> None:
        stop.interrupt(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
