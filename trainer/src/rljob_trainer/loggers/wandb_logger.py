"""Weights & Biases. Its own variables govern it: WANDB_API_KEY, WANDB_MODE=offline, WANDB_ENTITY ...

Offline, each attempt writes a folder of its own below the run's; `wandb sync RUN/wandb/offline-run-*` joins them.
"""

from collections.abc import Mapping

import wandb

from rljob_trainer.loggers.protocol import Status
from rljob_trainer.progress.run_info import RunInfo

_EXIT_CODES: dict[Status, int] = {"done": 0, "failed": 1, "stopped": 255}  # 255 is wandb's own for Ctrl-C


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
        # wandb refuses steps that go back, as they do after a resume: the step is a metric like any other, the x axis.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=_EXIT_CODES[status])
