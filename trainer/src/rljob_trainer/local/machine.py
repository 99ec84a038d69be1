"""GPUs of this machine, and child processes that never outlive their parent."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import psutil

Child = subprocess.Popen[bytes]

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

MODULE = (sys.executable, "-P", "-m")
"""Runs a module of this installation. -P: a file queue.py in the user's folder must not shadow Python's own."""

RLJOB = (*MODULE, "rljob_trainer.cli")
"""The command `rljob` of this installation."""


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
    *,
    cleans_up: bool = False,
) -> Child:
    """Start a process that logs to `log`. The kernel sends it the signal `orphaned` when this process dies.

    It leads its own process group, so that Ctrl-C in the terminal reaches this process alone.

    cleans_up: SIGTERM waits until the child, which inherits that, calls accept_termination. Any other child would never
        be terminated.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output, _termination_held_back() if cleans_up else nullcontext():
        return subprocess.Popen(
            dying_with_its_parent(command, orphaned),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


@contextmanager
def _termination_held_back() -> Iterator[None]:
    """Children that start here inherit the mask of this thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def accept_termination() -> None:
    """Let SIGTERM through, which start_child(cleans_up=True) held back: this process can clean up from now on."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def dying_with_its_parent(command: Sequence[str], how: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command, wrapped so that the kernel signals the process when its parent dies."""
    return ["setpriv", "--pdeathsig", how.name.removeprefix("SIG"), "--", *command]


END_SECONDS = 10.0


def end_child(child: Child) -> None:
    """Terminate the child, and kill it if it does not end within END_SECONDS."""
    if child.stdin is not None:
        child.stdin.close()
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            with suppress(subprocess.TimeoutExpired):  # it ends once its volume answers
                child.wait(END_SECONDS)


def adopt_orphans() -> None:
    """Make this process adopt descendants whose parents die (it becomes their subreaper)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wake_when_orphaned() -> None:
    """Send this process SIGTERM and SIGCONT when its parent dies, even if it is stopped or the parent died before.

    Needs start_child(stdin=PIPE): only the parent holds the other end of the pipe, which closes with it. SIGKILL would
    also end a stopped process, but without cleaning up.
    """
    subprocess.Popen(["sh", "-c", _WAKE])


_WAKE = 'read -r _; grep -q "^PPid:[[:space:]]*$PPID$" /proc/$$/status && kill -TERM $PPID && kill -CONT $PPID'
"""Checks the parent again, because the kernel reuses process ids."""


def kill_children() -> None:
    """Kill the direct children; end_session ends what they leave."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.kill()


def end_descendants() -> None:
    """Kill all descendants, including adopted orphans, and wait until they are gone."""
    while children := psutil.Process().children(recursive=True):
        _kill(children)


def _kill(processes: list[psutil.Process]) -> None:
    """Kill them, Python's resource trackers last: these free the shared memory of killed processes, then exit."""
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
    """Whether the process is stopped (SIGSTOP), so that it neither answers nor ends."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def end_session(leader: int) -> None:
    """Kill the processes that a killed or stopped session leader left."""
    deadline = time.monotonic() + END_SECONDS
    while left := [process for process in psutil.process_iter() if _session_of(process) == leader]:
        if time.monotonic() > deadline:  # blocked in the kernel: they end once their volume answers
            return
        _kill(left)


def _session_of(process: psutil.Process) -> int:
    """The session of a process; 0 if it has ended."""
    try:
        return 0 if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.NoSuchProcess, OSError):
        return 0


def last_line(log: Path) -> str:
    """The last line that is not blank; "" if the log has none or cannot be read."""
    return next((line.strip() for line in reversed(_lines(log)) if line.strip()), "")


def last_error(log: Path) -> str:
    """The last line that names an exception, else the last line."""
    named = (line for line in reversed(_lines(log)) if re.search(r"(?:Error|Exception)\b: \S", line))
    found = next((line for line in named if "Engine core initialization failed" not in line), "")
    return re.sub(r"^.*?(\w+(?:Error|Exception)\b: )", r"\1", found).strip() or last_line(log)


def _lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()
    except OSError:
        return []
