"""Ctrl-C and SIGTERM end a campaign: no run begins, and the thread that waits for a run ends it."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_NOTE = b"stopping: what runs is told to end; Ctrl-C again ends it at once\n"


@dataclass(slots=True)
class Stop:
    """asked: how often; every run gets as many signals, and ends at once at the second. signal: the last one."""

    asked: int = 0
    signal: int = 0


@contextmanager
def interrupts() -> Iterator[Stop]:
    stop = Stop()

    def ask(number: int, _: FrameType | None) -> None:
        stop.asked, stop.signal = stop.asked + 1, number
        if stop.asked == 1:
            os.write(sys.stderr.fileno(), _NOTE)  # a print may be interrupted, and would not bear another

    previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
