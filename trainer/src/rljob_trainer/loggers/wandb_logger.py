"""Weights & Biases. Its own variables configure it: WANDB_API_KEY, WANDB_MODE=offline, WANDB_ENTITY ...

Offline, each attempt writes its own folder in the run's folder; `wandb sync RUN/wandb/offline-run-*` joins them.
"""

from collections.abc import Mapping

import wandb

from rljob_trainer.loggers.episodes import COLUMNS, EpisodeTable
from rljob_trainer.loggers.protocol import Status
from rljob_trainer.progress.run_info import RunInfo

_EXIT_CODES: dict[Status, int] = {"done": 0, "failed": 1, "stopped": 255}  # wandb uses 255 for Ctrl-C


class WandbLogger:
    def start(self, run: RunInfo) -> None:
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.uid,
            resume="allow",
            dir=str(run.directory),
            config=dict(run.config),
            settings=wandb.Settings(console="off", disable_git=True, save_code=False),
        )
        # wandb rejects decreasing steps, which occur after a resume: so the step is a metric, used as the x axis.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def episodes(self, table: EpisodeTable) -> None:
        self._run.log({"episodes": wandb.Table(list(COLUMNS), [list(row) for row in table.rows]), "step": table.step})

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=_EXIT_CODES[status])
