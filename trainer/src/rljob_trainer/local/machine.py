"""What this machine offers, and child processes that never outlive their parent."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

Child = subprocess.Popen[bytes]

RLJOB = (sys.executable, "-m", "rljob_trainer.cli")
"""The command `rljob` of this very installation."""


def gpus_present() -> int:
    """GPUs that a process may use: those of CUDA_VISIBLE_DEVICES, or all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def start_child(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    orphaned: signal.Signals = signal.SIGKILL,
) -> Child:
    """Start a process whose output goes to `log`, and which the kernel sends `orphaned` when this process dies.

    It leads a process group of its own: Ctrl-C in the terminal reaches this process alone, which decides what to do.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", orphaned.name.removeprefix("SIG"), "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


END_SECONDS = 10.0


def end_child(child: Child) -> None:
    """Terminate and, where that does not suffice, kill."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def last_line(log: Path) -> str:
    """The last line that a child wrote, "" where it wrote none."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
