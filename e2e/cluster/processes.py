"""A cluster's processes. Each has its cluster's folder and its own name in its environment, and is found by them.

So there is no list that a crash could make false: whatever still runs is found, and nothing else.
"""

import os
import select
import signal
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

FOLDER = "RLJOB_CLUSTER"
NAME = "RLJOB_CLUSTER_PROCESS"


def start(folder: Path, name: str, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
    """Start a process that outlives this one. Through setsid it has no parent that must reap it."""
    marks = {FOLDER: str(folder), NAME: name}
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", *command],
            env={**os.environ, **variables, **marks},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=True,
        )


def find(folder: Path) -> dict[str, list[int]]:
    """The running processes of a cluster by name, but for the one that asks."""
    found: dict[str, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        variables = _environment(entry)
        if variables.get(FOLDER) == str(folder) and int(entry.name) != os.getpid():
            found[variables[NAME]].append(int(entry.name))
    return dict(found)


def _environment(entry: Path) -> dict[str, str]:
    """Empty for a process that has ended or is another user's."""
    with suppress(OSError):
        pairs = (pair.partition("=") for pair in (entry / "environ").read_text(errors="replace").split("\0"))
        return {name: value for name, _, value in pairs}
    return {}


def stop(process: int, grace: float) -> None:
    """End a process, also a frozen one, and wait until it is gone; after `grace` seconds by SIGKILL."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        try:
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            signal.pidfd_send_signal(handle, signal.SIGCONT)
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            if not ended.poll(grace * 1000):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                ended.poll()
        finally:
            os.close(handle)


def send(process: int, what: signal.Signals) -> None:
    os.kill(process, what)
