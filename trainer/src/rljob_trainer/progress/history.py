"""Read metrics: the lines of all attempts as one history. Light: the agent uses it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_trainer.checkpoint.lineage import Segment, lineage
from rljob_trainer.progress.names import TIME_STEP, VALIDATION_REWARD
from rljob_trainer.volume import Volume

Line = dict[str, Any]
"""{"step": int, "stage": "sft", "dpo" or "rl", "time": unix seconds, <metric name>: float, ...}"""


def read_metrics(run_dir: Path) -> list[Line]:
    """As `history`; [] if the volume does not answer."""
    try:
        return history(Volume(run_dir))
    except OSError:
        return []


def history(volume: Volume) -> list[Line]:
    """The run's lines along its lineage, oldest step first, without truncated lines. Raises OSError.

    An attempt that continues after step s replaces what others wrote about later steps. Example:

        a1 wrote steps 1 2 3 4 5; a2 resumed from step 3 and wrote 4 5 6:   1 2 3 (of a1)  4 5 6 (of a2)
    """
    found: list[Line] = []
    done: set[int] = set()  # by newer attempts: a driver that was frozen may report a step that another one finished
    for segment in lineage(volume).segments:
        lines = [line for line in _of_segment(volume, segment) if line["step"] not in done or TIME_STEP not in line]
        done |= {line["step"] for line in lines if TIME_STEP in line}
        found = lines + found
        if before := _lines(volume.metrics_before(segment.attempt)):  # all steps before the attempt
            return before + found
    return found


def _of_segment(volume: Volume, segment: Segment) -> list[Line]:
    return [line for line in _lines(volume.metrics(segment.attempt)) if line["step"] <= segment.steps]


def _lines(path: Path) -> list[Line]:
    try:
        return [line for line in parse_lines(path.read_text(errors="replace")) if "stage" in line]
    except FileNotFoundError:
        return []


def last_line(volume: Volume, attempt: int) -> Line:
    """The newest line of an attempt, with its newest validation; {} if it has none, or the volume does not answer."""
    try:
        lines = _lines(volume.metrics(attempt))
    except OSError:
        return {}
    validated = next((line for line in reversed(lines) if VALIDATION_REWARD in line), {})
    kept = {name: value for name, value in validated.items() if name.startswith("validation/")}
    return kept | lines[-1] if lines else {}


def parse_lines(text: str) -> Iterator[Line]:
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            yield line
