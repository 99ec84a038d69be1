"""The process that holds a local run's Ray: python -m rljob_trainer.local.ray_head FOLDER GPUS ENGINE

It writes Ray's address to FOLDER/address and waits. When it is told to end, or when Ray ends or is frozen, it ends
every process that Ray ever started here and deletes FOLDER. The kernel tells it to end when its parent dies, however
that happens, so a run leaves nothing behind.

`ray.init` would start a dashboard, an autoscaler and a log monitor too, several seconds of a small machine's time for
nothing that a local run looks at. Hence Ray's own class for the processes of a node, as `ray start` uses it.

Its workers are forked from a process that has imported the engine and all else that they need.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.services import get_node

from rljob_trainer.local import ray_worker
from rljob_trainer.local.machine import (
    MODULE,
    adopt_orphans,
    dying_with_its_parent,
    end_descendants,
    wake_when_orphaned,
)
from rljob_trainer.local.ray_cluster import ADDRESS

OBJECT_STORE_BYTES = 512 << 20
"""Groups of responses pass through it: a few MB a step for small models. Ray spills what does not fit."""

LOOK_SECONDS = 0.2

STOPPED_SECONDS = 10.0
"""How long a process of Ray may be stopped."""

_VITAL = ("gcs_server", "raylet")
_TERMINATED = 128 + signal.SIGTERM


class _Head(Node):
    """A head without a dashboard."""

    def start_api_server(self, **_: Any) -> None:
        self._webui_url = ""

    def start_ray_processes(self) -> None:
        """Ray gives its raylet 30 s to register; one that lives on a busy machine gets the time that it needs."""
        super().start_ray_processes()
        while not self._is_registered() and len(_vital()) == len(_VITAL):
            time.sleep(LOOK_SECONDS)

    def _is_registered(self) -> bool:
        try:
            return bool(get_node(self.gcs_address, self._node_id))
        except RuntimeError:
            return False


def main() -> None:
    folder, gpus, engine = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    adopt_orphans()
    signal.signal(signal.SIGTERM, _leave)
    try:
        wake_when_orphaned()
        preloaded = _preload(folder / "preloaded", engine, "cuda" if gpus else "cpu")
        address = _start(folder, gpus)
        (folder / "part").write_text(address)
        (folder / "part").rename(folder / ADDRESS)
        _wait_for_the_end_of({each.pid: each.name() for each in _vital()}, preloaded)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_descendants()
        shutil.rmtree(folder, ignore_errors=True)


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


def _vital() -> list[psutil.Process]:
    """Those that live."""
    children = psutil.Process().children()
    return [child for child in children if child.name() in _VITAL and child.status() != psutil.STATUS_ZOMBIE]


def _wait_for_the_end_of(vital: dict[int, str], preloaded: int) -> None:
    stopped = dict.fromkeys((*vital, preloaded), 0.0)
    while True:
        while ended := _reap():
            if ended in vital:  # the others are orphans of Ray's workers
                sys.exit(f"Ray's process {vital[ended]} ended unexpectedly")
            stopped.pop(ended, None)
        for pid in stopped:
            stopped[pid] = stopped[pid] + LOOK_SECONDS if _is_stopped(pid) else 0.0
            if stopped[pid] > STOPPED_SECONDS and pid in vital:
                sys.exit(f"Ray's process {vital[pid]} has been stopped for {STOPPED_SECONDS:.0f} s")
            if stopped[pid] > STOPPED_SECONDS:
                os.kill(pid, signal.SIGKILL)  # Ray starts its workers without it
        time.sleep(LOOK_SECONDS)


def _reap() -> int:
    """A child that has ended; 0 for none."""
    return os.waitpid(-1, os.WNOHANG)[0]


def _is_stopped(pid: int) -> bool:
    """Whether somebody froze it: such a process would neither answer nor end."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:  # reaped by subprocess, while Ray started its own
        return False


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(_TERMINATED)


if __name__ == "__main__":
    main()
