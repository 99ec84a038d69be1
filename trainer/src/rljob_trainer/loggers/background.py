"""Keeps a tracker's delays and failures away from the training."""

import queue
import threading
import time
from collections.abc import Mapping

import structlog

from rljob_trainer.loggers.protocol import Logger, Status
from rljob_trainer.progress.run_info import RunInfo

log = structlog.get_logger(__name__)

QUEUE_STEPS = 1000
"""Steps that wait for a slow tracker; those beyond are not sent to it."""

FINISH_SECONDS = 30.0
"""How long the end of a run waits for a tracker."""

_Step = tuple[int, Mapping[str, float]]


class BackgroundLogger:
    """Runs one tracker in a daemon thread. One failure, and it is left out for the rest of the run."""

    def __init__(self, name: str, logger: Logger, run: RunInfo) -> None:
        self._name, self._logger, self._run = name, logger, run
        self._queue: queue.Queue[_Step | Status] = queue.Queue(maxsize=QUEUE_STEPS)
        self._skipped = 0
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._serve, name=f"logger-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put((step, metrics))

    def close(self, status: Status) -> None:
        """The last call before `join`; a queue that is full has lost the tracker's end anyway."""
        self._put(status)
        self._deadline = time.monotonic() + FINISH_SECONDS

    def join(self) -> None:
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("logger_abandoned", logger=self._name, waited_seconds=FINISH_SECONDS)

    def _put(self, item: _Step | Status) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            if not self._skipped:
                log.warning("logger_too_slow", logger=self._name, waiting_steps=QUEUE_STEPS)
            self._skipped += 1

    def _serve(self) -> None:
        try:
            self._logger.start(self._run)
            while not isinstance(item := self._queue.get(), str):
                self._logger.log(*item)
            self._logger.finish(item)
        except Exception as error:  # noqa: BLE001 - a tracker is somebody else's code, and no reason to stop a training
            log.warning("logger_failed", logger=self._name, error=f"{type(error).__name__}: {error}")
