"""Is a driver that runs still alive? Its progress file says so, which it renews every few seconds."""

import time
from dataclasses import dataclass, field

from rljob_trainer.progress.reporter import HEARTBEAT
from rljob_trainer.progress.state import heartbeat
from rljob_trainer.volume import Volume

START_SECONDS = 600.0
"""How long a driver may take to give its first sign of life."""

LONGEST_LOOK = 0.5
"""Seconds between two looks, at most: what is longer was our own pause."""


@dataclass(slots=True)
class Silence:
    """How long a driver has not renewed its progress file, counted look by look: clocks may jump, processes may stop.

    Until the first sign of this driver it may take START_SECONDS: it imports, on a machine that may be cold.
    """

    volume: Volume
    allowed: float
    seconds: float = 0.0
    begun: bool = False
    stamp: int | None = None
    looked: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.stamp = heartbeat(self.volume)

    def too_long(self) -> bool:
        now, stamp = time.monotonic(), heartbeat(self.volume)
        self.seconds += min(now - self.looked, LONGEST_LOOK)
        self.looked = now
        if stamp != self.stamp:
            self.seconds, self.begun, self.stamp = 0.0, True, stamp
        return self.seconds > (self.allowed + HEARTBEAT if self.begun else START_SECONDS)
