"""End frozen drivers of earlier attempts."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger()


def end_frozen(root: Path, attempt: int) -> None:
    """Kill stopped (SIGSTOP) drivers of earlier attempts on the volume `root` in this container or machine.

    They are fenced anyway, but an engine that sends groups to one blocks in Ray until Ray ends it, which takes minutes.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() == psutil.STATUS_STOPPED and _attempt_on(root, process.cmdline()) < attempt:
                process.kill()
                log.warning("frozen_driver_ended", pid=process.pid)


def _attempt_on(root: Path, words: list[str]) -> float:
    """The attempt of the driver that this command line starts; infinity if it is not a driver of this volume."""
    options = dict(pairwise(words))
    folder, number = options.get("--dir", ""), options.get("--attempt", "")
    if "driver" not in words or not number.isdigit() or Path(folder).resolve() != root:
        return float("inf")
    return int(number)
