"""Reading metrics: the lines of all attempts as one history. Light, because the agent reads them too."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_trainer.progress.state import read_object
from rljob_trainer.volume import Volume

Line = dict[str, Any]
"""{"step": int, "stage": "sft" or "rl", "time": unix seconds, <metric name>: float, ...}"""

_TAIL_BYTES = 64 * 1024
_METRICS = re.compile(r"a(\d+)\.jsonl")


def read_metrics(run_dir: Path) -> list[Line]:
    """The run's history, oldest step first, as its last attempt sees it.

    An attempt that resumed from step s replaces what older attempts wrote about steps after s. An example:

        a1 wrote steps 1 2 3 4 5; a2 resumed from step 3 and wrote 4 5 6:   1 2 3 (of a1)  4 5 6 (of a2)

    A line that a crash cut short is left out.
    """
    volume = Volume(run_dir)
    history: list[Line] = []
    for attempt in _attempts(volume):
        resumed = resumed_step(volume, attempt)
        history = [line for line in history if line["step"] <= resumed]
        history += parse_lines(_text(volume.metrics(attempt)))
    return history


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
    """The step after which the attempt began; -1 if it began with nothing."""
    claim = read_object(volume.claim(attempt)) or {}
    step = claim.get("resumedStep")
    return step if isinstance(step, int) else -1


def parse_lines(text: str) -> Iterator[Line]:
    for row in text.splitlines():
        try:
            line = json.loads(row)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            yield line


def _attempts(volume: Volume) -> list[int]:
    """Numbers of the attempts that wrote metrics, oldest first: one that never came to a step replaces nothing."""
    try:
        matches = [_METRICS.fullmatch(path.name) for path in volume.metrics(0).parent.iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for match in matches if match)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
