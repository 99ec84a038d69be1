"""A trace of what a rank and an engine compute: RLJOB_PROFILE=torch rljob run FILE.

    RUN/profile/update-PID.json.gz     one update of each rank: its third, when all is compiled
    RUN/profile/rollout-PID.json.gz    32 decode steps of each engine, from its 65th on

https://ui.perfetto.dev and chrome://tracing open these files. Processes find the folder in RLJOB_PROFILE_FOLDER, which
`rljob run` sets; in a cluster, set that variable alone, to a folder that the pods can write.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from rljob_trainer.errors import JobError

if TYPE_CHECKING:
    from torch.profiler import profile as Profiler

log = structlog.get_logger()

VARIABLE, FOLDER = "RLJOB_PROFILE", "RLJOB_PROFILE_FOLDER"

_PARTS: Mapping[str, tuple[int, int]] = {"update": (2, 1), "rollout": (64, 32)}
"""Of each kind: how many come first without profile, and how many are in the trace."""


def profile_folder(run: Path) -> dict[str, str]:
    """The variable for the run's processes; empty if nothing is profiled. Raises JobError for an unknown profiler."""
    wanted = os.environ.get(VARIABLE)
    if wanted not in {None, "", "torch"}:
        raise JobError(f"the variable {VARIABLE} is {wanted}: set it to torch, or unset it")
    return {FOLDER: str((run / "profile").absolute())} if wanted else {}


class Profile:
    """Counts the parts of one kind in this process, and writes one trace of some of them."""

    def __init__(self, kind: Literal["update", "rollout"]) -> None:
        self._kind, self._seen = kind, 0
        self._first, self._count = _PARTS[kind]
        folder = os.environ.get(FOLDER)
        self._path = Path(folder) / f"{kind}-{os.getpid()}.json.gz" if folder else None
        self._profiler: Profiler | None = None

    @contextmanager
    def part(self) -> Iterator[None]:
        """One update, or one decode step. In the thread that computes."""
        if self._path is None:
            yield
            return
        if self._seen == self._first:
            self._begin()
        yield
        self._seen += 1
        if self._profiler is not None and self._seen == self._first + self._count:
            self._end(self._profiler, self._path)

    def _begin(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profiler = profile(activities=[ProfilerActivity.CPU, *gpu])
        self._profiler.start()

    def _end(self, profiler: "Profiler", path: Path) -> None:
        profiler.stop()
        self._profiler = None
        path.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(path))
        log.info("profile_written", kind=self._kind, path=str(path))
