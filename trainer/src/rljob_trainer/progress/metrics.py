"""Write metrics: one JSON line per step, one file per attempt."""

import json
import math
import time
from collections.abc import Mapping
from typing import Literal, Self

from rljob_trainer.errors import JobError, on_volume
from rljob_trainer.progress.history import Line
from rljob_trainer.volume import Volume

Stage = Literal["sft", "dpo", "rl"]
"""sft, dpo: steps on given responses, of preset dpo on pairs. rl: steps on sampled ones."""


class MetricsWriter:
    """Appends to the metrics of one attempt. A line is in the file when `write` returns."""

    def __init__(self, volume: Volume, attempt: int) -> None:
        path = volume.metrics(attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def write(self, step: int, stage: Stage, metrics: Mapping[str, float]) -> Line:
        """Append one line and return it.

        Raises:
            JobError: a metric is NaN or infinite.
            StorageFullError, InfrastructureError: the volume is full, or fails.
        """
        line: Line = {"step": step, "stage": stage, "time": round(time.time(), 3)}
        line |= {name: _finite(name, value, step) for name, value in metrics.items()}
        with on_volume(f"{self._file.name} cannot be written"):
            self._file.write(json.dumps(line) + "\n")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _finite(name: str, value: float, step: int) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise JobError(
            f"{name} is {number} at step {step}: the training has diverged; lower the learning rate",
            field="spec.actor.learningRate",
        )
    return number
