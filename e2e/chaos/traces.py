"""What a run leaves on the machine while it goes on, and must not leave after its end."""

import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

GONE_SECONDS = 30.0
"""How long processes may take to end after `rljob run`."""

SCORING_SECONDS = 0.2
"""A mark of a call that is older is of a reward process that was killed."""

MARK_VARIABLE = "RLJOB_CHAOS_SCORING"
"""The file that a reward function makes while it is called (jobs.py)."""

_SHARED = Path("/dev/shm")

_RUN_VARIABLE = "RLJOB_CHAOS_RUN"


class Traces:
    """Of one run: every process of it inherits `environment`, so each can be found, and its temporary files too.

    Shared memory is the machine's: of what is left there, everything counts that is new and that no process maps.
    """

    def __init__(self) -> None:
        self._run = uuid.uuid4().hex
        self._temporary = Path(
            tempfile.mkdtemp(prefix="rc-", dir="/tmp")
        )  # short: the names of Ray's sockets have 107 bytes
        self._shared = shared_memory()
        self._mark = self._temporary / "scoring"
        self.environment: Mapping[str, str] = {
            _RUN_VARIABLE: self._run,
            MARK_VARIABLE: str(self._mark),
            "TMPDIR": str(self._temporary),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)

    def scores(self) -> bool:
        """Whether a reward function is being called."""
        try:
            return time.time() - self._mark.stat().st_mtime < SCORING_SECONDS
        except OSError:
            return False

    def left(self) -> list[str]:
        """Processes, files and shared memory of the run that have not gone by themselves a while after its end."""
        deadline = time.monotonic() + GONE_SECONDS
        while (left := self._processes() + self._files() + self._memory()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def _processes(self) -> list[str]:
        """Their command lines."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_RUN_VARIABLE) == self._run:
                    found.append(" ".join(process.cmdline()))
            except (psutil.Error, OSError):  # it ended while we looked
                continue
        return found

    def _files(self) -> list[str]:
        return [path.name for path in self._temporary.glob("rljob*")]  # torch keeps a cache of its own here

    def _memory(self) -> list[str]:
        return sorted(str(_SHARED / name) for name in unused_memory() - self._shared)


def shared_memory() -> set[str]:
    return {path.name for path in _SHARED.iterdir()}


def unused_memory() -> set[str]:
    """Shared memory that no process will remove: other runs use some at the same time.

    A segment has a process that maps it. multiprocessing's semaphores need not; its trackers remove them at their end.
    """
    made = shared_memory()
    used: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            used |= set(re.findall(rf"{_SHARED}/(\S+)", maps.read_text()))
    if any("multiprocessing.resource_tracker" in line for line in map(_command_line, psutil.process_iter())):
        used |= {name for name in made if name.startswith("sem.mp-")}
    return made - used


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
