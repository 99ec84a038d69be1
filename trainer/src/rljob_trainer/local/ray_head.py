"""The process that holds a local run's Ray: python -m rljob_trainer.local.ray_head FOLDER GPUS ENGINE

    main thread   starts Ray ──> writes its address to FOLDER/address ──> reaps orphans
    watch         polls Ray's processes from their start on, and ends this process when one of them fails

On SIGTERM, or when Ray ends, is stopped or does not start in time, it kills all processes that Ray started here and
deletes FOLDER. The kernel sends SIGTERM when the parent dies, so a run leaves nothing behind.

`ray.init` and `ray start` would also start a dashboard, an autoscaler and a log monitor, which take several seconds and
which a local run does not use, and cannot replace setup_worker.py. Hence Ray's own class for the processes of a node.

Its workers are forked from a process that has already imported their modules (`preloaded`).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from types import FrameType
from typing import Any

import psutil
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.services import get_node
from ray.exceptions import RaySystemError

from rljob_trainer.local import ray_worker
from rljob_trainer.local.machine import (
    MODULE,
    accept_termination,
    adopt_orphans,
    dying_with_its_parent,
    end_descendants,
    wake_when_orphaned,
)
from rljob_trainer.local.ray_cluster import ADDRESS, RAY_FOLDER, STOPPED_SECONDS

OBJECT_STORE_BYTES = 512 << 20
"""It carries groups of responses, a few MB a step for small models. Ray spills what does not fit."""

LOOK_SECONDS = 0.2

_REMOVALS = 10
"""Attempts to delete the folder; together shorter than END_SECONDS, after which the supervisor kills this process."""

START_SECONDS = 90.0
"""Deadline of Ray's start, shorter than the driver's wait for it, so that Ray is named as the cause."""

_VITAL = ("gcs_server", "raylet")
_ERROR = re.compile(r"\[[-\d :,]+ [CE] ")
"""Begins the line of an error in their logs."""

_TERMINATED = 128 + signal.SIGTERM


class _Head(Node):
    """A head without a dashboard."""

    def start_api_server(self, **_: Any) -> None:
        self._webui_url = ""

    def start_ray_processes(self) -> None:
        """Wait for the raylet to register up to START_SECONDS; Ray itself allows 30 s, too little on a busy machine."""
        super().start_ray_processes()
        while not self._is_registered():
            time.sleep(LOOK_SECONDS)

    def _is_registered(self) -> bool:
        try:
            return bool(get_node(self.gcs_address, self._node_id))
        except (RuntimeError, RaySystemError):  # the second after 5 to 15 s, if the GCS does not answer
            return False


@dataclass(slots=True)
class _Watch:
    """Watches Ray's processes in a thread, because Ray's start may wait for a dead process and handles no signals.

    Until a new GCS reports its port (half a second), Ray waits with the GIL held, at most 30 s, and then raises.

    started: Ray is up. terminated: SIGTERM was received. ending: held by the thread that ends this process.
    """

    folder: Path
    started: bool = False
    terminated: bool = False
    ending: Lock = field(default_factory=Lock)

    def begin(self, preloaded: psutil.Process) -> None:
        Thread(target=self._watch, args=(preloaded,), daemon=True).start()

    def leave(self, _number: int, _frame: FrameType | None) -> None:
        """Handle SIGTERM. Python may drop the exception, in a destructor or around a fork; `main` polls the flag."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the clean-up
        self.terminated = True
        sys.exit(_TERMINATED)

    def clean_up(self) -> None:
        """Kill all descendants and delete the folder. A second caller blocks until the process ends.

        Another thread may still be starting Ray and creating files, so the deletion is repeated.
        """
        self.ending.acquire()
        for _ in range(_REMOVALS):
            end_descendants()
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(LOOK_SECONDS)

    def _watch(self, preloaded: psutil.Process) -> None:
        try:
            trouble = self._trouble(preloaded)
        except Exception as error:  # noqa: BLE001  without this thread Ray is not watched
            trouble = f"this is a bug: {type(error).__name__}: {error}"
        self.clean_up()
        print(trouble, file=sys.stderr, flush=True)
        os._exit(1)

    def _trouble(self, preloaded: psutil.Process) -> str:
        """Wait for a failure and describe it. Counts polls, so time in which this process was stopped is ignored."""
        vital: dict[str, psutil.Process] = {}
        stopped: dict[psutil.Process, float] = {}
        seconds = 0.0
        while self.started or seconds < START_SECONDS:
            time.sleep(LOOK_SECONDS)
            seconds += LOOK_SECONDS
            if len(vital) < len(_VITAL):
                vital = _vital()
            for name in _VITAL:
                if not _lives(vital[name]) if name in vital else self.started:
                    when = "unexpectedly" if self.started else "while it started"
                    return f"Ray's process {name} ended {when}{self._last_words(name)}"
            for process in (*vital.values(), preloaded):
                stopped[process] = stopped.get(process, 0.0) + LOOK_SECONDS if _is_stopped(process) else 0.0
            for name, process in vital.items():
                if stopped[process] > STOPPED_SECONDS:
                    return f"Ray's process {name} has been stopped for {STOPPED_SECONDS:.0f} s"
            if stopped[preloaded] > STOPPED_SECONDS:
                with suppress(psutil.NoSuchProcess):
                    preloaded.kill()  # Ray then starts its workers by itself
        return f"Ray did not start within {START_SECONDS:.0f} s"

    def _last_words(self, name: str) -> str:
        """The last error in the log of that process; "" without one."""
        found = ""
        for log in (self.folder / RAY_FOLDER).glob(f"session_*/logs/{name}.out"):
            errors = [line for line in log.read_text(errors="replace").splitlines() if _ERROR.match(line)]
            found = f": {errors[-1]}" if errors else found
        return found


def main() -> None:
    folder, gpus, engine = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    watch = _Watch(folder)
    adopt_orphans()
    signal.signal(signal.SIGTERM, watch.leave)
    try:
        accept_termination()
        wake_when_orphaned()
        watch.begin(psutil.Process(_preload(folder / "preloaded", engine, "cuda" if gpus else "cpu")))
        address = _start(folder, gpus)
        (folder / "part").write_text(address)
        (folder / "part").rename(folder / ADDRESS)
        watch.started = True
        while not watch.terminated:
            _reap_orphans()
            time.sleep(LOOK_SECONDS)
        sys.exit(_TERMINATED)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watch.clean_up()


def _preload(path: Path, engine: str, device: str) -> int:
    """Start the process from which workers are forked. Returns its pid."""
    os.environ[ray_worker.SOCKET] = str(path)
    command = [*MODULE, "rljob_trainer.local.preloaded", str(path), engine, device]
    return subprocess.Popen(dying_with_its_parent(command)).pid


def _start(folder: Path, gpus: int) -> str:
    settings = RayParams(
        temp_dir=str(folder / RAY_FOLDER),
        num_cpus=len(os.sched_getaffinity(0)),
        num_gpus=gpus,
        object_store_memory=OBJECT_STORE_BYTES,
        gcs_server_port=0,
        min_worker_port=0,
        max_worker_port=0,
        no_monitor=True,
        include_log_monitor=False,
        include_dashboard=False,
        setup_worker_path=ray_worker.__file__,
    )
    # spawn_reaper: the kernel kills Ray's processes when this one dies. shutdown_at_exit: `main` cleans up itself.
    return str(_Head(settings, head=True, shutdown_at_exit=False, spawn_reaper=True).address)


def _vital() -> dict[str, psutil.Process]:
    """Ray's vital processes by name, including zombies."""
    children = psutil.Process().children()
    return {name: child for child in children if (name := child.name()) in _VITAL}


def _lives(process: psutil.Process) -> bool:
    return _status(process) not in (None, psutil.STATUS_ZOMBIE)


def _is_stopped(process: psutil.Process) -> bool:
    return _status(process) == psutil.STATUS_STOPPED


def _status(process: psutil.Process) -> str | None:
    """None if the process is gone, even if its id was reused."""
    try:
        return str(process.status()) if process.is_running() else None
    except psutil.NoSuchProcess:
        return None


def _reap_orphans() -> None:
    """Reap Ray's workers. Only once Ray is up: while it starts, it waits for children itself."""
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass


if __name__ == "__main__":
    main()
