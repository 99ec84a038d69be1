"""The one thread of an engine's process that touches the engine.

    submit, abort ──> mailbox ──┐
    do(work) ──────> mailbox ──> loop: work from the mailbox, else one decode step ──> deliver(completions)

Requests arrive at any moment and start with the next decode step. Work such as a weight update runs between two steps.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from rljob_trainer.engines.engine import Completion, RolloutEngine
from rljob_trainer.errors import InfrastructureError, RLJobError
from rljob_trainer.workers.profile import Profile
from rljob_trainer.workers.trace import record

R = TypeVar("R")

BUNDLE_SECONDS = 0.05
"""How long a completion waits for others while the engine generates on: a message between processes costs about 1 ms,
so many short answers must not cost as many messages."""

Deliver = Callable[[Sequence[Completion], Exception | None], None]


class EngineLoop:
    """Runs work and decode steps in one thread.

    deliver: gets completions, or the error that ended the requests; called in that thread.
    busy_since: time.monotonic() when it began to generate; None while it does not.
    """

    busy_since: float | None = None

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._engine: RolloutEngine | None = None
        self._mailbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._bundle: list[Completion] = []
        self._bundled = 0.0
        self._broken: Exception | None = None
        self._profile = Profile("rollout")
        self._when_idle: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> RolloutEngine | None:
        """None until `start`. Only work in the loop may use it."""
        return self._engine

    def start(self, make: Callable[[], RolloutEngine]) -> None:
        """Make the engine in the loop's thread. Raises what `make` raises."""

        def work() -> None:
            self._engine = make()

        self.do(work)

    def do(self, work: Callable[[], R]) -> R:
        """Run `work` between two decode steps. Returns or raises what it does."""
        future: Future[R] = Future()
        self._mailbox.put(lambda: self._finish(future, work))
        return future.result()

    def do_when_idle(self, work: Callable[[], R]) -> R:
        """As `do`, once nothing is unfinished."""
        future: Future[R] = Future()
        self._mailbox.put(lambda: self._when_idle.append(lambda: self._finish(future, work)))
        return future.result()

    def _finish(self, future: "Future[R]", work: Callable[[], R]) -> None:
        try:
            if self._broken is not None:
                raise InfrastructureError(f"the rollout engine failed before: {self._broken}")
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  it belongs to the caller
            future.set_exception(error)

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` between two decode steps, without waiting. What it raises is delivered."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  the subscriber must see it
                self._fail(error)

        self._mailbox.put(run)

    def close(self) -> None:
        """End the engine and the thread."""
        if self._thread.is_alive():
            self._mailbox.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            if self._bundle and not self._busy():
                self._send()
            while self._when_idle and not self._busy():
                self._when_idle.pop(0)()
            busy = self._note_busy()
            try:
                work = self._mailbox.get(block=not busy)
            except queue.Empty:
                self._step()
                continue
            if work is None:
                break
            work()
        if self._engine is not None:
            self._engine.close()

    def _busy(self) -> bool:
        return self._engine is not None and self._engine.unfinished > 0 and self._broken is None

    def _note_busy(self) -> bool:
        busy, since = self._busy(), self.busy_since
        if since is not None and not busy:
            record("generate", time.monotonic() - since)
        self.busy_since = (since or time.monotonic()) if busy else None
        return busy

    def _step(self) -> None:
        assert self._engine is not None
        start = time.monotonic()
        try:
            with self._profile.part():
                completions = self._engine.step()
        except Exception as error:  # noqa: BLE001  the subscriber must see it
            self._broken = error  # what the engine holds is unknown: it is replaced
            self._fail(error)
            return
        now = time.monotonic()
        if completions and not self._bundle:
            self._bundled = now
        self._bundle += completions
        after_next = now + (now - start)  # when the next step ends, if it takes as long
        if self._bundle and (not self._engine.unfinished or after_next - self._bundled > BUNDLE_SECONDS):
            self._send()

    def _send(self) -> None:
        bundle, self._bundle = self._bundle, []
        self._deliver(bundle, None)

    def keep(self, completions: Sequence[Completion]) -> None:
        """Deliver these with the next ones; called by work in the loop."""
        self._bundle += completions

    def _fail(self, error: Exception) -> None:
        if self._bundle:
            self._send()
        self._deliver([], error if isinstance(error, RLJobError) else RuntimeError(traceback.format_exc()))
