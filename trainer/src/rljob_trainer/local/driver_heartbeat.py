"""Detects a driver that hangs: a live one rewrites its progress file every few seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rljob_trainer.progress.reporter import HEARTBEAT
from rljob_trainer.progress.state import heartbeat
from rljob_trainer.volume import Volume

START_SECONDS = 600.0
"""Time for a driver's first heartbeat: it imports its modules, perhaps on a cold machine."""

LONGEST_LOOK = 0.5
"""Most seconds that count between two polls: a longer gap was a pause of this process."""


@dataclass(slots=True)
class DriverHeartbeat:
    """Seconds since a driver last wrote its progress file.

    Counted poll by poll, because clocks may jump and this process may be stopped.
    """

    volume: Volume
    allowed: float
    clock: Callable[[], float] = time.monotonic
    seconds: float = 0.0
    begun: bool = False
    stamp: int | None = None
    looked: float = 0.0

    def __post_init__(self) -> None:
        self.looked, self.stamp = self.clock(), heartbeat(self.volume)

    def is_overdue(self) -> bool:
        now, stamp = self.clock(), heartbeat(self.volume)
        self.seconds += min(now - self.looked, LONGEST_LOOK)
        self.looked = now
        if stamp != self.stamp:
            self.seconds, self.begun, self.stamp = 0.0, True, stamp
        return self.seconds > (self.allowed + HEARTBEAT if self.begun else START_SECONDS)
