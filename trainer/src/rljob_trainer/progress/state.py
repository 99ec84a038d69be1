"""State of a run from its directory: its attempts, and whether the driver lives.

Readers treat missing and invalid files as absent, because the agent must answer at any time.
"""

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rljob_trainer.local.file_lock import is_locked
from rljob_trainer.volume import Volume, read_json

SILENT_AFTER = 30.0
"""Seconds without a heartbeat after which a driver without an exit record counts as dead: six heartbeats."""

_WRITTEN_BY = re.compile(r"(?:step-\d+-)?a(\d+)(?:\..+)?")
_OF_ATTEMPT = re.compile(r"(\d+)(\.copy|\.newest|\.exit|\.preflight)?\.json")


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is none or it cannot be read."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def run_name(directory: Path) -> str:
    """The job's name, which the folder does not have where a cluster mounts it; the folder's before a job began."""
    return str((read_object(Volume(directory).job) or {}).get("name") or directory.resolve().name)


def last_attempt(volume: Volume) -> int:
    """Number of the newest attempt; 0 before the first, or if the volume does not answer."""
    try:
        return newest_claim(volume)
    except OSError:
        return 0


def newest_claim(volume: Volume) -> int:
    """Number of the newest attempt with any file in attempts/; 0 before the first. Raises OSError."""
    try:
        matches = [_OF_ATTEMPT.fullmatch(path.name) for path in volume.attempts.iterdir()]
    except FileNotFoundError:
        return 0
    return max((int(match[1]) for match in matches if match), default=0)


def next_attempt(volume: Volume) -> int:
    """A number above all on the volume, also if attempts/ is lost or a checkpoint was copied to it. Raises OSError."""
    taken = [newest_claim(volume)]
    for folder in (volume.checkpoints, volume.journals, volume.metrics(1).parent):
        with suppress(FileNotFoundError):
            taken += [int(match[1]) for path in folder.iterdir() if (match := _WRITTEN_BY.fullmatch(path.name))]
    return 1 + max(taken)


def supervised(volume: Volume) -> bool | None:
    """Whether an `rljob run` supervises the run: False if one did and ended, None if it never did."""
    try:
        return is_locked(volume.run_lock)
    except OSError:
        return None


def heartbeat(volume: Volume) -> int | None:
    """A number that changes every few seconds while a driver lives; None before the first heartbeat."""
    try:
        return volume.progress.stat().st_mtime_ns
    except OSError:
        return None


def silence(volume: Volume) -> float | None:
    """Seconds since the driver's last heartbeat; None before the first."""
    try:
        return max(0.0, time.time() - volume.progress.stat().st_mtime)
    except OSError:
        return None
