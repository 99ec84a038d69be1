"""The base of every Ray worker: fencing, heartbeats while it works, and exit without a driver.

Ray runs four groups of methods in threads of their own:

    (default)    call              the work, in the order of the calls
    control      claim, sign, beat answered at once, also while work runs
    background   call              waits beside the work: for a written checkpoint, or for groups
    inbox        call              messages of other workers, in their order: requests, completions
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from rljob_trainer.errors import FencedError
from rljob_trainer.workers.imports import uncollected
from rljob_trainer.workers.trace import traced

CONCURRENCY_GROUPS = {"control": 2, "background": 2, "inbox": 1}

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class HostSettings:
    """signature: equal for interchangeable workers. leave_after: seconds without a driver until the worker exits."""

    attempt: int
    signature: str
    leave_after: float


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat. doing: running methods and their seconds so far. detail, pace: see Host."""

    pid: int
    doing: list[tuple[str, float]]
    detail: str
    pace: int | None


class Host:
    """Wraps the object that works, which subclasses make in `create`.

    harmless: methods that workers may also call on behalf of a superseded driver.
    """

    harmless: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: HostSettings, *arguments: Any) -> None:
        self._attempt, self._signature = settings.attempt, settings.signature
        self._leave_after = settings.leave_after
        self._claiming = threading.Lock()
        self._doing: dict[object, tuple[str, float]] = {}
        with uncollected():
            self.worker = self.create(*arguments)
        self._heard = time.monotonic()
        threading.Thread(target=self._leave_when_abandoned, name="leave", daemon=True).start()

    def create(self, *arguments: Any) -> Any:
        """Make the object whose methods `call` calls. Heavy imports belong here: the driver imports the module."""
        raise NotImplementedError

    def claimed(self) -> None:
        """Called when a new attempt takes this worker over, before its first call."""

    def detail(self) -> str:
        """Text for error messages that distinguishes a hanging worker from those that wait for it."""
        return ""

    def also_doing(self) -> list[tuple[str, float]]:
        """Work besides calls, and its seconds so far."""
        return []

    def pace(self) -> int | None:
        """Progress counter that identifies the straggler in a collective; None outside of one. Thread-safe."""
        return None

    # ------------------------------------------------------------------ control

    def claim(self, attempt: int) -> str:
        """Obey only `attempt` from now on. Returns the signature. Raises FencedError if a newer attempt has claimed."""
        with self._claiming:  # of two concurrent claims the newer attempt must win
            if attempt < self._attempt:
                raise FencedError(f"attempt {self._attempt} has taken over from attempt {attempt}")
            self._heard = time.monotonic()
            if attempt > self._attempt:
                self._attempt = attempt
                self.claimed()
            return self._signature

    def sign(self, attempt: int, signature: str) -> None:
        """Change the signature."""
        self._check(attempt)
        self._signature = signature

    def beat(self, attempt: int) -> Beat:
        """Answer a heartbeat; the request also shows that the driver lives."""
        self._check(attempt)
        self._heard = time.monotonic()
        doing = [(method, self._heard - since) for method, since in list(self._doing.values())]
        return Beat(os.getpid(), doing + self.also_doing(), self.detail(), self.pace())

    # ------------------------------------------------------------------ work

    def call(self, attempt: int, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the worker. Raises FencedError if `attempt` is superseded."""
        if method not in self.harmless:
            self._check(attempt)
        with self._busy(method):
            return getattr(self.worker, method)(*arguments, **named)

    @contextmanager
    def _busy(self, method: str) -> Iterator[None]:
        call = object()  # several may run at once
        self._doing[call] = method, time.monotonic()
        try:
            with traced(method):
                yield
        finally:
            del self._doing[call]

    def _check(self, attempt: int) -> None:
        if attempt != self._attempt:
            raise FencedError(f"attempt {self._attempt} has taken over from attempt {attempt}")

    def _leave_when_abandoned(self) -> None:
        while time.monotonic() - self._heard < self._leave_after:
            time.sleep(_LOOK_SECONDS)
        os._exit(0)
