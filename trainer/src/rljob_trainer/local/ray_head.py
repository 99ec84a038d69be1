"""The process that holds a local run's Ray: python -m rljob_trainer.local.ray_head FOLDER GPUS ENGINE

    main thread   starts Ray ──> writes its address to FOLDER/address ──> reaps orphans
    watch         looks at Ray's processes, also while they start, and ends this one when one of them fails

When it is told to end, or when Ray ends, is frozen or does not start in time, it ends every process that Ray ever
started here and deletes FOLDER, which it has made. The kernel tells it to end when its parent dies, however that
happens, so a run leaves nothing behind.

`ray.init` would start a dashboard, an autoscaler and a log monitor too, several seconds of a small machine's time for
nothing that a local run looks at. Hence Ray's own class for the processes of a node, as `ray start` uses it.

Its workers are forked from a process that has imported the engine and all else that they need.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
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
    adopt_orphans,
    dying_with_its_parent,
    end_descendants,
    wake_when_orphaned,
)
from rljob_trainer.local.ray_cluster import ADDRESS, STOPPED_SECONDS

OBJECT_STORE_BYTES = 512 << 20
"""Groups of responses pass through it: a few MB a step for small models. Ray spills what does not fit."""

LOOK_SECONDS = 0.2

_REMOVALS = 10
"""Of the folder, one a look; fewer than whoever waits for this process has patience for."""

START_SECONDS = 90.0
"""Deadline of Ray's start. Shorter than the driver's, which would take it for its own failure."""

_VITAL = ("gcs_server", "raylet")
_TERMINATED = 128 + signal.SIGTERM


class _Head(Node):
    """A head without a dashboard."""

    def start_api_server(self, **_: Any) -> None:
        self._webui_url = ""

    def start_ray_processes(self) -> None:
        """Ray gives its raylet 30 s to register; one on a busy machine gets what START_SECONDS leaves it."""
        super().start_ray_processes()
        while not self._is_registered():
            time.sleep(LOOK_SECONDS)

    def _is_registered(self) -> bool:
        try:
            return bool(get_node(self.gcs_address, self._node_id))
        except (RuntimeError, RaySystemError):  # the second after 5 to 15 s, where the GCS does not answer
            return False


@dataclass(slots=True)
class _Watch:
    """Over Ray's processes, from before they are there, in a thread of its own: Ray's code that starts them may wait
    for one that has ended, and hears no signal meanwhile.

    Until a new GCS has said its port (half a second), Ray waits for that with the GIL, 30 s at most, and then raises.

    started: whether Ray is up. told: whether somebody wants this process to end. ending: held by the thread that ends
    it, until its end.
    """

    folder: Path
    started: bool = False
    told: bool = False
    ending: Lock = field(default_factory=Lock)

    def begin(self, preloaded: psutil.Process) -> None:
        Thread(target=self._watch, args=(preloaded,), daemon=True).start()

    def leave(self, _number: int, _frame: FrameType | None) -> None:
        """Handles SIGTERM. Where Python drops the exception, as in a destructor or around a fork, Ray starts first."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it may come twice, and cleaning up is not to be cut short
        self.told = True
        sys.exit(_TERMINATED)

    def clean_up(self) -> None:
        """Every process below this one, and the folder. For whoever ends this process: it does not return twice.

        Ray's code may still be starting in another thread, and make files where they are being removed.
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
        except Exception as error:  # noqa: BLE001  without this thread nobody would look after Ray
            trouble = f"this is a bug: {type(error).__name__}: {error}"
        self.clean_up()
        print(trouble, file=sys.stderr, flush=True)
        os._exit(1)

    def _trouble(self, preloaded: psutil.Process) -> str:
        """Waits for it. Seconds are counted look by look: those in which this process was frozen do not count."""
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
                    return f"Ray's process {name} ended {'unexpectedly' if self.started else 'while it started'}"
            for process in (*vital.values(), preloaded):
                stopped[process] = stopped.get(process, 0.0) + LOOK_SECONDS if _is_stopped(process) else 0.0
            for name, process in vital.items():
                if stopped[process] > STOPPED_SECONDS:
                    return f"Ray's process {name} has been stopped for {STOPPED_SECONDS:.0f} s"
            if stopped[preloaded] > STOPPED_SECONDS:
                with suppress(psutil.NoSuchProcess):
                    preloaded.kill()  # Ray starts its workers without it
        return f"Ray did not start within {START_SECONDS:.0f} s"


def main() -> None:
    folder, gpus, engine = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    watch = _Watch(folder)
    adopt_orphans()
    signal.signal(signal.SIGTERM, watch.leave)
    folder.mkdir(mode=0o700)
    try:
        tempfile.tempdir = None  # TMPDIR is this folder: what asked before it was there got another
        wake_when_orphaned()
        watch.begin(psutil.Process(_preload(folder / "preloaded", engine, "cuda" if gpus else "cpu")))
        address = _start(folder, gpus)
        (folder / "part").write_text(address)
        (folder / "part").rename(folder / ADDRESS)
        watch.started = True
        while not watch.told:
            _reap_orphans()
            time.sleep(LOOK_SECONDS)
        sys.exit(_TERMINATED)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        watch.clean_up()


def _preload(path: Path, engine: str, device: str) -> int:
    """The pid."""
    os.environ[ray_worker.SOCKET] = str(path)
    command = [*MODULE, "rljob_trainer.local.preloaded", str(path), engine, device]
    return subprocess.Popen(dying_with_its_parent(command)).pid


def _start(folder: Path, gpus: int) -> str:
    settings = RayParams(
        temp_dir=str(folder),
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
    # spawn_reaper: the kernel kills Ray's processes when this one dies. Its hooks for our own end are those above.
    return str(_Head(settings, head=True, shutdown_at_exit=False, spawn_reaper=True).address)


def _vital() -> dict[str, psutil.Process]:
    """By name, those that have ended and were not reaped included."""
    children = psutil.Process().children()
    return {name: child for child in children if (name := child.name()) in _VITAL}


def _lives(process: psutil.Process) -> bool:
    return _status(process) not in (None, psutil.STATUS_ZOMBIE)


def _is_stopped(process: psutil.Process) -> bool:
    """Whether somebody froze it: such a process would neither answer nor end."""
    return _status(process) == psutil.STATUS_STOPPED


def _status(process: psutil.Process) -> str | None:
    """None of one that is gone, also where another one has its number."""
    try:
        return str(process.status()) if process.is_running() else None
    except psutil.NoSuchProcess:
        return None


def _reap_orphans() -> None:
    """Of Ray's workers. Not before Ray is up: it waits for children of its own meanwhile."""
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass


if __name__ == "__main__":
    main()
