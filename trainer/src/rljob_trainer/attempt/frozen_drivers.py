"""Drivers of earlier attempts that are still there, but frozen."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger()


def end_frozen(root: Path, attempt: int) -> None:
    """Kill drivers of attempts before `attempt` on the volume `root` that were stopped (SIGSTOP), where this process
    sees them: in its container, or on its machine.

    What they wrote would not count. But an engine that hands groups to one waits for it, deep in Ray's own code, and
    does nothing for anybody else meanwhile. Ray ends such a driver minutes after it was asked to: so long may others
    take to save.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED and _attempt_on(root, process.cmdline()) < attempt:
                process.kill()
                log.warning("frozen_driver_ended", pid=process.pid)


def _attempt_on(root: Path, words: list[str]) -> float:
    """Whose driver that command line starts; infinity where it is none of this volume."""
    options = dict(pairwise(words))
    folder, number = options.get("--dir", ""), options.get("--attempt", "")
    if "driver" not in words or not number.isdigit() or Path(folder).resolve() != root:
        return float("inf")
    return int(number)
