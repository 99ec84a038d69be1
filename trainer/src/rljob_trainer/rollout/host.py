"""The Ray worker of a rollout engine. A module of its own, so that its process does not import the trainer."""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rljob_trainer.errors import JobError
from rljob_trainer.rollout.engine import EngineSettings, import_engine
from rljob_trainer.rollout.worker import RolloutWorker


class EngineHost(RolloutWorker):
    """A rollout engine that sees only the GPUs of its ranks."""

    def __init__(self, settings: EngineSettings, threads: int) -> None:
        """Imports what the engine needs, while others still read data and weights."""
        with suppress(JobError):  # vLLM is missing: start says so
            import_engine(settings)
        if settings.device == "cpu":
            import torch

            torch.set_num_threads(threads)
        super().__init__(settings)

    def start_on(self, gpus: Sequence[str]) -> dict[str, Any]:
        """gpus: as CUDA_VISIBLE_DEVICES names them; none on a CPU."""
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        return self.start()
