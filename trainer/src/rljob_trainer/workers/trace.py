"""When workers work: with RLJOB_TRACE=FOLDER in the environment, each process appends its calls to FOLDER/PID.jsonl.

    {"pid": 4551, "call": "generate", "start": 1760000000.25, "end": 1760000000.40}      unix seconds

`make bench` reads from it how long no worker worked, which is what Ray and the driver cost.
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
    """The variable for processes that work in other folders; empty where nobody asked."""
    folder = os.environ.get(VARIABLE)
    return {VARIABLE: str(Path(folder).absolute())} if folder else {}


@contextmanager
def traced(call: str) -> Iterator[None]:
    """Write down when this block ran; costs nothing where nobody asked for it."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        yield
        return
    start = time.time()
    try:
        yield
    finally:
        line = {"pid": os.getpid(), "call": call, "start": start, "end": time.time()}
        _file(Path(folder), os.getpid()).write(json.dumps(line) + "\n")


@cache
def _file(folder: Path, pid: int) -> TextIO:
    """Stays open: to open it costs as much as many a call that is timed."""
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / f"{pid}.jsonl").open("a", buffering=1)
