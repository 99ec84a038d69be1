"""Trace of workers' calls: with RLJOB_TRACE=FOLDER in the environment each process appends to FOLDER/PID.jsonl.

    {"pid": 4551, "call": "update", "start": 1760000000.25, "end": 1760000000.40}      unix seconds

An entry "generate" is not a call: it is a time in which an engine had requests. `make bench` adds up the time in which
no worker works, which is the cost of Ray and the driver; `make bench-agents` shows how busy an engine is.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TextIO

VARIABLE = "RLJOB_TRACE"


def trace_folder() -> dict[str, str]:
    """The variable with an absolute path, for child processes; empty if tracing is off."""
    folder = os.environ.get(VARIABLE)
    return {VARIABLE: str(Path(folder).absolute())} if folder else {}


@contextmanager
def traced(call: str) -> Iterator[None]:
    """Record when this block ran, if tracing is on."""
    start = time.time()
    try:
        yield
    finally:
        record(call, time.time() - start)


def record(call: str, seconds: float) -> None:
    """Record what has just ended and took so long, if tracing is on."""
    if folder := os.environ.get(VARIABLE):
        end = time.time()
        line = {"pid": os.getpid(), "call": call, "start": end - seconds, "end": end}
        _file(Path(folder), os.getpid()).write(json.dumps(line) + "\n")


@cache
def _file(folder: Path, pid: int) -> TextIO:
    """Cached, because opening the file takes as long as a short call."""
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / f"{pid}.jsonl").open("a", buffering=1)
