"""Ends what reward code started, also in sessions of its own."""

from contextlib import suppress

import psutil

_ROUNDS = 100
"""A process that forks faster than it is killed cannot keep the pool for ever."""


def kill_descendants(pid: int) -> None:
    """Stop a reward process and kill all that descends from it.

    The process is a subreaper: what loses its parent becomes its child. It is stopped, so it starts nothing more, and
    each round finds what a process of the round before had started.
    """
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        root.suspend()
        for _ in range(_ROUNDS):
            alive = [child for child in root.children(recursive=True) if _is_alive(child)]
            if not alive:
                return
            for child in alive:
                with suppress(psutil.Error):
                    child.kill()


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
