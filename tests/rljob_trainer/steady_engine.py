"""An engine that needs no model, in the real Ray worker of engines. Light: its process imports nothing else."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljob_trainer.engines.engine_host import EngineHost
from rljob_trainer.old_types import Group, Prompt, Sample, Sampling


class SteadyEngine:
    """Makes a group every `pace` seconds, and notes in a file which it begins."""

    def __init__(self, notes: str, pace: float) -> None:
        self._notes, self._pace = Path(notes), pace

    def generate_groups(
        self, prompts: Sequence[Prompt], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> Iterator[list[Group]]:
        for prompt, row in zip(prompts, seeds, strict=True):
            with self._notes.open("a") as file:
                file.write(f"{prompt.id}\n")
            time.sleep(self._pace)
            ids = np.arange(2, 2 + sampling.max_tokens, dtype=np.int32)
            log_probs = np.zeros(len(ids), np.float32)
            samples = tuple(Sample(prompt.id, i, ids, log_probs, "length") for i in range(len(row)))
            yield [Group(prompt, samples, 0)]

    def abandon(self) -> None:
        """It ends by itself."""


class SteadyHost(EngineHost):
    def create(self, notes: str, pace: float) -> Any:  # type: ignore[override]
        self._wanted = False
        return SteadyEngine(notes, pace)
