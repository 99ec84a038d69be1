"""Ctrl-C and SIGTERM end a campaign: no run begins, and each that runs is told to end by whoever waits for it."""

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
    """asked: how often; every run is told as often, and takes the second time for at once. signal: the last one."""

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
