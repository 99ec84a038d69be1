"""Trackio: a local database (TRACKIO_DIR), or a Hugging Face Space. Show it with `trackio show`."""

from collections.abc import Mapping

import trackio

from rljob_trainer.loggers.protocol import Status
from rljob_trainer.progress.run_info import RunInfo


class TrackioLogger:
    def start(self, run: RunInfo) -> None:
        self._run = trackio.init(
            project=run.project, name=f"{run.name}-{run.uid[:8]}", config=dict(run.config), resume="allow", embed=False,
            auto_log_gpu=False, auto_log_cpu=False,
        )  # fmt: skip

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, _status: Status) -> None:
        self._run.finish()
