"""What every Ray worker of a job is, besides its work: fenced, alive to questions while it works, and not for ever.

Ray runs four groups of methods in threads of their own:

    (default)    call, stream      the work, in the order in which it was asked for
    control      claim, sign, beat answered at once, also while work runs
    background   call              work beside the work: waiting until a checkpoint is written, or for groups
    inbox        call              what other workers send, in their order: requests, completions
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
    """signature: equal for workers that can stand in for one another. leave_after: seconds without a driver."""

    attempt: int
    signature: str
    leave_after: float


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. doing: the methods that run, and for how many seconds. detail, pace: see Host."""

    pid: int
    doing: list[tuple[str, float]]
    detail: str
    pace: int | None


class Host:
    """Wraps the object that works. Subclasses say which, in `create`.

    harmless: methods that workers may call in the name of a driver that has been replaced.
    """

    harmless: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, settings: HostSettings, *arguments: Any) -> None:
        self._attempt, self._signature = settings.attempt, settings.signature
        self._leave_after = settings.leave_after
        self._claiming = threading.Lock()
        self._doing: dict[object, tuple[str, float]] = {}
        with uncollected():
            self.worker = self.create(*arguments)
        self._heard = time.monotonic()  # nobody is answered before
        threading.Thread(target=self._leave_when_abandoned, name="leave", daemon=True).start()

    def create(self, *arguments: Any) -> Any:
        """Make the object whose methods `call` calls. Heavy imports belong here: a driver imports this module too."""
        raise NotImplementedError

    def claimed(self) -> None:
        """A new attempt has taken this worker over; called before its first call."""

    def detail(self) -> str:
        """What helps a person to tell a worker that hangs from those that wait for it."""
        return ""

    def also_doing(self) -> list[tuple[str, float]]:
        """What it does besides calls, and for how many seconds."""
        return []

    def pace(self) -> int | None:
        """A number that grows while it works step by step with others, who wait for the one whose number is smaller.

        None while it does not, or may take its time. Also asked for by another thread than the one that works.
        """
        return None

    # ------------------------------------------------------------------ control

    def claim(self, attempt: int) -> str:
        """From now on, obey `attempt` alone. Returns the signature. Raises FencedError where a newer one was here."""
        with self._claiming:  # two may claim at once: the older one must not come out on top
            if attempt < self._attempt:
                raise FencedError(f"attempt {self._attempt} has taken over from attempt {attempt}")
            self._heard = time.monotonic()
            if attempt > self._attempt:
                self._attempt = attempt
                self.claimed()
            return self._signature

    def sign(self, attempt: int, signature: str) -> None:
        """From now on, stand in for workers of that signature."""
        self._check(attempt)
        self._signature = signature

    def beat(self, attempt: int) -> Beat:
        """A sign of life for the driver, and one from it."""
        self._check(attempt)
        self._heard = time.monotonic()
        doing = [(method, self._heard - since) for method, since in list(self._doing.values())]
        return Beat(os.getpid(), doing + self.also_doing(), self.detail(), self.pace())

    # ------------------------------------------------------------------ work

    def call(self, attempt: int, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the worker. Raises FencedError for a driver that another one replaced."""
        if method not in self.harmless:
            self._check(attempt)
        with self._busy(method):
            return getattr(self.worker, method)(*arguments, **named)

    def stream(self, attempt: int, method: str, *arguments: Any, **named: Any) -> Iterator[Any]:
        """Like `call`, for a method that yields. It runs to its end also when the driver that asked is gone."""
        self._check(attempt)
        with self._busy(method):
            yield from getattr(self, method)(*arguments, **named)

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
