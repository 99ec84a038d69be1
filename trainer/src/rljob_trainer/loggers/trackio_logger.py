"""Trackio: a local database (TRACKIO_DIR), or a Hugging Face Space. Show it with `trackio show`."""

from collections.abc import Mapping
from html import escape

import trackio

from rljob_trainer.loggers.episodes import COLUMNS, Cell, EpisodeTable
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

    def episodes(self, table: EpisodeTable) -> None:
        rows = [[_shown(cell) for cell in row] for row in table.rows]
        self._run.log({"episodes": trackio.Table(columns=list(COLUMNS), data=rows)}, step=table.step)

    def finish(self, _status: Status) -> None:
        self._run.finish()


def _shown(cell: Cell) -> Cell:
    """Its pages take text for HTML: what a model wrote must not become markup."""
    return escape(cell, quote=False) if isinstance(cell, str) else cell
