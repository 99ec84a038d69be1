"""Follow a run's files while they grow."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api.v1alpha1 import Progress
from rljob_trainer.progress.history import Line, parse_lines, read_metrics
from rljob_trainer.progress.state import last_attempt, read_object
from rljob_trainer.volume import Volume


@dataclass(frozen=True, slots=True)
class News:
    """Changes since the last poll. phase: the phase that began, if any."""

    lines: list[Line] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    phase: str | None = None

    def __bool__(self) -> bool:
        return bool(self.lines or self.warnings or self.phase)


class RunWatch:
    """The state of a run from its files; lines that exist already are history, not news.

    history: all lines, as from read_metrics. phase_since: monotonic time of the phase's first poll.
    """

    def __init__(self, volume: Volume) -> None:
        self.history = read_metrics(volume.root)
        self.progress = Progress()
        self.phase_since = time.monotonic()
        self._volume = volume
        self._progress_stamp = _stamp(volume.progress)
        self._attempt, self._replaces = last_attempt(volume), False
        self._metrics = _Tail(volume.metrics(self._attempt), at_end=True)
        self._log = _Tail(volume.log(self._attempt), at_end=True)

    def poll(self) -> News:
        attempt = last_attempt(self._volume)
        if attempt > self._attempt:  # 0 if the volume does not answer
            self._follow(attempt)
        lines = list(parse_lines(self._metrics.read()))
        if lines and self._replaces:  # an attempt's claim says where it resumed before it writes a line
            self.history, self._replaces = read_metrics(self._volume.root), False
        else:
            self.history += lines
        return News(lines, _warnings(self._log.read()), self._new_phase())

    def phase_seconds(self) -> float:
        return time.monotonic() - self.phase_since

    def series(self, stage: str, name: str) -> Sequence[float]:
        """One metric over the steps of a stage that have it."""
        return [line[name] for line in self.history if line["stage"] == stage and name in line]

    def _follow(self, attempt: int) -> None:
        self._attempt, self._replaces = attempt, True
        self._metrics = _Tail(self._volume.metrics(attempt))
        self._log = _Tail(self._volume.log(attempt))

    def _new_phase(self) -> str | None:
        stamp = _stamp(self._volume.progress)
        if stamp == self._progress_stamp:
            return None
        self._progress_stamp, before = stamp, self.progress
        try:
            self.progress = Progress.model_validate(read_object(self._volume.progress) or {})
        except ValueError:
            return None
        if (self.progress.phase, self.progress.step) == (before.phase, before.step):
            return None
        self.phase_since = time.monotonic()
        return self.progress.phase if self.progress.phase != before.phase else None


class _Tail:
    """Reads new whole lines of a growing text file."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if at_end and path.exists() else 0

    def read(self) -> str:
        if _stamp(self._path)[1] <= self._offset:
            return ""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:  # the next poll tries again
            return ""
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode(errors="replace")


def _stamp(path: Path) -> tuple[int, int]:
    """Modification time and size; zeros if the file cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


_FRAME = {"event", "level", "logger", "timestamp"}


def _warnings(text: str) -> list[str]:
    """The log's warnings as `event key=value`, without errors, which the exit record reports."""
    found: list[str] = []
    for row in text.splitlines():
        try:
            entry: Any = json.loads(row)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("level") == "warning":
            keys = [f"{key}={value}" for key, value in entry.items() if key not in _FRAME]
            found.append(" ".join(["warning:", str(entry.get("event", "")), *keys]))
    return found
