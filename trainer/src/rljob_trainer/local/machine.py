"""What this machine offers, and child processes that never outlive their parent."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

Child = subprocess.Popen[bytes]

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

MODULE = (sys.executable, "-P", "-m")
"""Runs a module of this installation. -P: a file queue.py in the user's folder must not stand for Python's own."""

RLJOB = (*MODULE, "rljob_trainer.cli")
"""The command `rljob` of this very installation."""


def visible_gpus() -> list[str]:
    """Names of the GPUs that a process may use: those of CUDA_VISIBLE_DEVICES, or the numbers of all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]


def start_child(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    orphaned: signal.Signals = signal.SIGKILL,
    stdin: int = subprocess.DEVNULL,
) -> Child:
    """Start a process whose output goes to `log`, and which the kernel sends `orphaned` when this process dies.

    It leads a process group of its own: Ctrl-C in the terminal reaches this process alone, which decides what to do.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            dying_with_its_parent(command, orphaned),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


def dying_with_its_parent(command: Sequence[str], how: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command of a process that the kernel sends a signal when its parent dies."""
    return ["setpriv", "--pdeathsig", how.name.removeprefix("SIG"), "--", *command]


END_SECONDS = 10.0


def end_child(child: Child) -> None:
    """Terminate and, where that does not suffice, kill."""
    if child.stdin is not None:
        child.stdin.close()
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            with suppress(subprocess.TimeoutExpired):  # the kernel ends it as soon as a volume answers
                child.wait(END_SECONDS)


def adopt_orphans() -> None:
    """From now on, processes below this one whose parents die become its children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wake_when_orphaned() -> None:
    """From now on, SIGTERM reaches this process when its parent dies, even where somebody has frozen it, and where that
    was before the kernel had been asked to tell.

    For processes that start_child starts with stdin=PIPE: its other end is the parent's alone, so it ends with the
    parent. SIGKILL would not wait for a frozen process to wake up, but leaves it nothing to clean up with.
    """
    subprocess.Popen(["sh", "-c", _WAKE])


_WAKE = 'read -r _; grep -q "^PPid:[[:space:]]*$PPID$" /proc/$$/status && kill -TERM $PPID && kill -CONT $PPID'
"""Another process may have the number of one that has ended."""


def kill_children() -> None:
    """Kill the processes right below this one, for whoever waits for their end; end_session finds what they leave."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.kill()


def end_descendants() -> None:
    """Kill all processes below this one, their orphans included, and wait until they are gone."""
    while children := psutil.Process().children(recursive=True):
        _kill(children)


def _kill(processes: list[psutil.Process]) -> None:
    """All but Python's resource trackers, which come last.

    They end by themselves, and remove what memory those that were killed shared.
    """
    for process in [each for each in processes if not _is_tracker(each)] or processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=1)


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def is_stopped(pid: int) -> bool:
    """Whether somebody froze the process (SIGSTOP): it would neither answer nor end."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def end_session(leader: int) -> None:
    """Kill what a child that led a session could not end itself, because it was frozen or killed."""
    deadline = time.monotonic() + END_SECONDS
    while left := [process for process in psutil.process_iter() if _session_of(process) == leader]:
        if time.monotonic() > deadline:  # in the kernel, which ends them as soon as a volume answers
            return
        _kill(left)


def _session_of(process: psutil.Process) -> int:
    """0 for one that has ended."""
    try:
        return 0 if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.NoSuchProcess, OSError):
        return 0


def last_line(log: Path) -> str:
    """The last line that a child wrote, "" where there is none that can be read."""
    return next((line.strip() for line in reversed(_lines(log)) if line.strip()), "")


def last_error(log: Path) -> str:
    """The last line of a child's output that names an error of its own, else its last line."""
    named = (line for line in reversed(_lines(log)) if re.search(r"(?:Error|Exception)\b: \S", line))
    found = next((line for line in named if "Engine core initialization failed" not in line), "")
    return re.sub(r"^.*?(\w+(?:Error|Exception)\b: )", r"\1", found).strip() or last_line(log)


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()
    except OSError:
        return []
