"""The run's metrics: one JSON line a step, one file an attempt."""

import errno
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rljob_trainer.errors import JobError, StorageFullError
from rljob_trainer.volume import Volume, read_json

Stage = Literal["sft", "rl"]
Line = dict[str, Any]
"""{"step": int, "stage": Stage, "time": unix seconds, <metric name>: float, ...}"""

_ATTEMPT_FILE = re.compile(r"a(\d+)\.jsonl")


class MetricsWriter:
    """Appends to the metrics of one attempt.

    A line is in the file when `write` returns, so readers see whole lines and a crash of the driver loses none.
    """

    def __init__(self, volume: Volume, attempt: int) -> None:
        path = volume.metrics(attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def write(self, step: int, stage: Stage, metrics: Mapping[str, float]) -> Line:
        """Append one line and return it.

        Raises:
            JobError: a metric is NaN or infinite: the training has diverged.
            StorageFullError: the volume is full.
        """
        line: Line = {"step": step, "stage": stage, "time": round(time.time(), 3)}
        line |= {name: _finite(name, value, step) for name, value in metrics.items()}
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(f"no space left for {self._file.name}: free space or grow the volume") from error
            raise
        return line

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _finite(name: str, value: float, step: int) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise JobError(
            f"{name} is {number} at step {step}: the training has diverged; lower the learning rate",
            field="spec.actor.learningRate",
        )
    return round(number, 8) if abs(number) >= 1e-3 else number


def attempts(volume: Volume) -> list[int]:
    """Numbers of the attempts that wrote metrics, oldest first."""
    folder = volume.metrics(0).parent
    if not folder.is_dir():
        return []
    matches = (_ATTEMPT_FILE.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def read_metrics(run_dir: Path) -> list[Line]:
    """The run's history, oldest step first, as its last attempt sees it.

    An attempt that resumed from step s replaces what older attempts wrote about steps after s. An example:

        a1 wrote steps 1 2 3 4 5; a2 resumed from step 3 and wrote 4 5 6:   1 2 3 (of a1)  4 5 6 (of a2)

    A line that a crash cut short is left out.
    """
    volume = Volume(run_dir)
    history: list[Line] = []
    for attempt in attempts(volume):
        resumed = resumed_step(volume, attempt)
        history = [line for line in history if line["step"] <= resumed]
        history += parse_lines(volume.metrics(attempt).read_text())
    return history


def resumed_step(volume: Volume, attempt: int) -> int:
    """The step after which the attempt began; -1 if it began with nothing."""
    try:
        claim = read_json(volume.claim(attempt))
    except ValueError:
        claim = None
    step = claim.get("resumedStep") if isinstance(claim, dict) else None
    return step if isinstance(step, int) else -1


def parse_lines(text: str) -> Iterator[Line]:
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            yield line
