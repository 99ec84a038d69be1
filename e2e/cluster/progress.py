"""What a person sees of work that takes minutes."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

LOOK_SECONDS = 0.2


@dataclass
class Progress:
    """Seconds of a build: one line that changes on a terminal, else a line now and then."""

    title: str
    started: float = field(default_factory=time.monotonic)
    shown: float = -1.0

    def show(self) -> None:
        seconds = time.monotonic() - self.started
        if self.shown < 0 or seconds >= self.shown + (1 if sys.stderr.isatty() else 30):
            self.shown = seconds
            self._write(f"{self.title}: {seconds:.0f} s", end="" if sys.stderr.isatty() else "\n")

    def done(self) -> None:
        self._write(f"{self.title}: done after {time.monotonic() - self.started:.0f} s", end="\n")

    def _write(self, text: str, end: str) -> None:
        print(f"\r{text}" if sys.stderr.isatty() else text, end=end, file=sys.stderr, flush=True)


@contextmanager
def shown(title: str) -> Iterator[None]:
    """While the block runs, which need not know of it."""
    progress, over = Progress(title), Event()

    def show() -> None:
        progress.show()
        while not over.wait(LOOK_SECONDS):
            progress.show()

    thread = Thread(target=show)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    progress.done()
