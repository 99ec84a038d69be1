"""The run as JSON lines on stdout."""

import sys
import time
from typing import TextIO

import structlog

from rljob_api.contract import ExitRecord
from rljob_trainer.progress.run_info import RunInfo
from rljob_trainer.progress.views.watch import RunWatch
from rljob_trainer.volume import Volume


class JsonView:
    """Events: run_started, phase_started, step_finished (with its metrics), driver_warned, noted, run_finished."""

    def __init__(self, run: RunInfo, out: TextIO | None = None) -> None:
        self._run = run
        self._watch = RunWatch(Volume(run.directory))
        self._started = time.monotonic()
        self._log = structlog.wrap_logger(
            structlog.PrintLogger(out or sys.stdout),
            processors=[structlog.processors.TimeStamper(fmt="iso", utc=True), structlog.processors.JSONRenderer()],
        )

    def start(self) -> None:
        run, directory = self._run, str(self._run.directory)
        self._log.info(
            "run_started", name=run.name, model=run.model, engine=run.engine, ranks=run.ranks, directory=directory
        )

    def poll(self) -> None:
        news = self._watch.poll()
        for warning in news.warnings:
            self._log.warning("driver_warned", message=warning)
        if news.phase:
            self._log.info("phase_started", phase=news.phase, step=self._watch.progress.step)
        for line in news.lines:
            self._log.info("step_finished", **line)

    def note(self, message: str) -> None:
        self._log.info("noted", message=message)

    def finish(self, record: ExitRecord | None) -> None:
        self.poll()
        seconds = round(time.monotonic() - self._started, 1)
        ended = record.model_dump(by_alias=True) if record else {"code": None}
        self._log.info("run_finished", seconds=seconds, **ended)
