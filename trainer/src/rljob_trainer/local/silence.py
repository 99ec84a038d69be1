"""Is a driver that runs still alive? Its progress file says so, which it renews every few seconds."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from rljob_trainer.progress.reporter import HEARTBEAT

START_SECONDS = 600.0
"""How long a driver may take to give its first sign of life."""

LONGEST_LOOK = 0.5
"""Seconds between two looks, at most: what is longer was our own pause."""


@dataclass(slots=True)
class Silence:
    """How long a driver has not renewed its progress file, counted look by look: clocks may jump, processes may stop.

    Until the first sign of this driver it may take START_SECONDS: it imports, on a machine that may be cold.
    """

    path: Path
    allowed: float
    seconds: float = 0.0
    begun: bool = False
    stamp: int | None = None
    looked: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.stamp = self._stamp()

    def too_long(self) -> bool:
        now, stamp = time.monotonic(), self._stamp()
        self.seconds += min(now - self.looked, LONGEST_LOOK)
        self.looked = now
        if stamp != self.stamp:
            self.seconds, self.begun, self.stamp = 0.0, True, stamp
        return self.seconds > (self.allowed + HEARTBEAT if self.begun else START_SECONDS)

    def _stamp(self) -> int | None:
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return None
