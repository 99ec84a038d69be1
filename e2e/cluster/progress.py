"""What a person sees of work that takes minutes."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

LOOK_SECONDS = 0.2

FIRST_SECONDS = 3.0
"""What takes less is not shown before its end."""

INTERVAL_SECONDS = 30.0
"""From line to line, where there is no terminal."""


@dataclass
class Progress:
    """Seconds of a build: one line that changes on a terminal, else a line now and then; of what is brief only its end.

    unchanged: all was there already, which is worth a word only where it took long enough to be shown.
    shown: seconds after its start when it was last; None: not yet.
    """

    title: str
    unchanged: bool = False
    started: float = field(default_factory=time.monotonic)
    shown: float | None = None

    def show(self) -> None:
        seconds = time.monotonic() - self.started
        if seconds >= self._next():
            self.shown = seconds
            self._write(f"{self.title}: {seconds:.0f} s", end="" if sys.stderr.isatty() else "\n")

    def end(self, how: str = "done") -> None:
        if self.shown is not None or not self.unchanged:
            self._write(f"{self.title}: {how} after {time.monotonic() - self.started:.0f} s", end="\n")

    def _next(self) -> float:
        """When it is to be shown, in seconds after its start."""
        if self.shown is None:
            return FIRST_SECONDS
        return self.shown + (1 if sys.stderr.isatty() else INTERVAL_SECONDS)

    def _write(self, text: str, end: str) -> None:
        print(f"\r{text}" if sys.stderr.isatty() else text, end=end, file=sys.stderr, flush=True)


@contextmanager
def shown(title: str) -> Iterator[Progress]:
    """While the block runs, which need not know of it; it may say that all was there."""
    progress, over = Progress(title), Event()

    def show() -> None:
        progress.show()
        while not over.wait(LOOK_SECONDS):
            progress.show()

    thread = Thread(target=show)
    thread.start()
    how = "failed"
    try:
        yield progress
        how = "unchanged" if progress.unchanged else "done"
    finally:
        over.set()
        thread.join()
        progress.end(how)
