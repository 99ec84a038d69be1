"""Isolates the training from a tracker's delays, failures and output."""

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import psutil
import structlog

from rljob_trainer.local.machine import last_line, start_child
from rljob_trainer.loggers.episodes import EpisodeTable
from rljob_trainer.loggers.protocol import Status
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.volume import Volume

log = structlog.get_logger(__name__)

QUEUE_STEPS = 1000
"""Longest queue of a slow tracker; further steps are not sent to it."""

FINISH_SECONDS = 30.0
"""Longest wait for a tracker at the end of a run."""

_Step = tuple[int, Mapping[str, float]]


class BackgroundLogger:
    """Runs one tracker in a process (child.py), and leaves it out after its first failure.

    name: used in warnings and as the name of the log file. target: the Logger as MODULE:CLASS.
    environment: variables for its process; ours take precedence.
    """

    def __init__(self, name: str, target: str, run: RunInfo, environment: Mapping[str, str]) -> None:
        self._name, self._output = name, Volume(run.directory).logs / f"{name}.log"
        self._child = start_child(
            [sys.executable, "-P", "-m", "rljob_trainer.loggers.child", target],
            self._output,
            {**environment, **os.environ},
            stdin=subprocess.PIPE,
        )
        self._queue: queue.Queue[RunInfo | _Step | EpisodeTable | Status | None] = queue.Queue(maxsize=QUEUE_STEPS)
        self._queue.put(run)
        self._too_slow = self._abandoned = False
        self._deadline = 0.0
        self._thread = threading.Thread(target=self._serve, name=f"logger-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._put((step, metrics))

    def episodes(self, table: EpisodeTable) -> None:
        self._put(table)

    def close(self, status: Status) -> None:
        """The last call before `join`. A full queue drops the status too."""
        self._put(status)
        self._put(None)
        self._deadline = time.monotonic() + FINISH_SECONDS

    def join(self) -> None:
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("logger_abandoned", tracker=self._name, waited_seconds=FINISH_SECONDS)
            self._abandoned = True
            self._kill()

    def _put(self, item: _Step | EpisodeTable | Status | None) -> None:
        if not self._thread.is_alive():
            return
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            if not self._too_slow:
                log.warning("logger_too_slow", tracker=self._name, waiting_steps=QUEUE_STEPS)
            self._too_slow = True

    def _serve(self) -> None:
        assert self._child.stdin is not None
        with suppress(OSError), self._child.stdin as pipe:  # it breaks if the process has exited
            while (item := self._queue.get()) is not None:
                pickle.dump(item, pipe)
                pipe.flush()
        if self._child.wait() and not self._abandoned:
            log.warning("logger_failed", tracker=self._name, error=last_line(self._output), log=str(self._output))

    def _kill(self) -> None:
        """Kill the tracker and its children: wandb's own process would continue to send."""
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self._child.pid)
            for each in (*process.children(recursive=True), process):
                each.kill()
