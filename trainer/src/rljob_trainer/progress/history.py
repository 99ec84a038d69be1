"""Reading metrics: the lines of all attempts as one history. Light, because the agent reads them too."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rljob_trainer.checkpoint.lineage import Segment, lineage, read_claim
from rljob_trainer.progress.names import TIME_STEP
from rljob_trainer.volume import Volume

Line = dict[str, Any]
"""{"step": int, "stage": "sft" or "rl", "time": unix seconds, <metric name>: float, ...}"""

_TAIL_BYTES = 64 * 1024


def read_metrics(run_dir: Path) -> list[Line]:
    """The run's history, oldest step first, as its newest attempt sees it: it follows the lineage.

    An attempt that continues after step s replaces what others wrote about steps after s. An example:

        a1 wrote steps 1 2 3 4 5; a2 resumed from step 3 and wrote 4 5 6:   1 2 3 (of a1)  4 5 6 (of a2)

    A line that a crash cut short is left out, and one without a stage, which we never write. None are there where the
    volume does not answer: who shows a run does not end for it.
    """
    try:
        return _history(Volume(run_dir), _answered)
    except OSError:
        return []


def history(volume: Volume) -> list[Line]:
    """As read_metrics, for whoever keeps it: raises OSError where the volume does not answer."""
    return _history(volume, _text)


def _history(volume: Volume, read: Callable[[Path], str]) -> list[Line]:
    found: list[Line] = []
    done: set[int] = set()  # by newer attempts: a driver that was frozen may report a step that another one finished
    for segment in lineage(volume).segments:
        lines = [
            line for line in _of_segment(volume, segment, read) if line["step"] not in done or TIME_STEP not in line
        ]
        done |= {line["step"] for line in lines if TIME_STEP in line}
        found = lines + found
        if before := _lines(read(volume.metrics_before(segment.attempt))):  # all of it, up to where the attempt began
            return before + found
    return found


def _of_segment(volume: Volume, segment: Segment, read: Callable[[Path], str]) -> list[Line]:
    return [line for line in _lines(read(volume.metrics(segment.attempt))) if line["step"] <= segment.steps]


def _lines(text: str) -> list[Line]:
    return [line for line in parse_lines(text) if "stage" in line]


def _text(path: Path) -> str:
    """Empty where there is no such file."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""


def _answered(path: Path) -> str:
    """Empty also where the volume does not give it."""
    try:
        return _text(path)
    except OSError:
        return ""


def last_line(volume: Volume, attempt: int) -> Line:
    """The newest line of an attempt, {} if it has none. Reads the file's end only: runs are long."""
    path = volume.metrics(attempt)
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return {}
    return next(reversed(list(parse_lines(text))), {})


def resumed_step(volume: Volume, attempt: int) -> int:
    """The step after which the attempt began; -1 if it began with nothing, or its claim cannot be read now."""
    try:
        claim = read_claim(volume, attempt)
    except OSError:
        return -1
    return claim.resumed_step or -1 if claim else -1


def parse_lines(text: str) -> Iterator[Line]:
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            yield line
