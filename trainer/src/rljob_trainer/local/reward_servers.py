"""vLLM servers of reward models, which live as long as `rljob run` does.

    start ──> /health answers ──> drivers send requests ──> the run ends and stops them
                   │                  └── a server that exits is restarted; drivers wait for it
                   └── a server that exits before: JobError with the last error of its log

Servers that already run (--reward-model NAME=URL) are only checked for health.
"""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Self
from urllib.request import ProxyHandler, build_opener

from rljob_api import reward_server
from rljob_api.v1alpha1 import RewardModel
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.local.machine import MODULE, Child, end_child, end_session, last_error, start_child
from rljob_trainer.local.private_folder import new_private_folder

START_SECONDS = 3600.0
"""Time for a server to become ready: it may have to download its model."""

LOOK_SECONDS = 0.5
HEALTH_SECONDS = 5.0

_LOOPBACK = "127.0.0.1"
_GUARD = (*MODULE, "rljob_trainer.local.process_guard")

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A server to start. field: the model's field in the spec. path: of the model. gpus: devices; empty for CPUs."""

    model: RewardModel
    field: str
    path: str
    gpus: tuple[str, ...]


class RewardServers:
    """plans: servers to start. running: URLs of servers that already run, by name. logs: folder for their output."""

    def __init__(
        self, plans: Sequence[Plan], running: Mapping[str, str], logs: Path, environment: Mapping[str, str]
    ) -> None:
        self._servers = [_Server(plan, logs / f"reward-model-{plan.model.name}.log", environment) for plan in plans]
        self.urls = {**running, **{server.plan.model.name: server.url for server in self._servers}}
        self._running = dict(running)

    def __enter__(self) -> Self:
        for server in self._servers:
            server.start()
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers:
            server.end()

    def wait(self, note: Note, stopped: Callable[[], bool]) -> None:
        """Wait until all are ready or `stopped` returns True. Restarts a server that was ready and hangs.

        Raises:
            JobError: a server exited before it was ready.
            InfrastructureError: a server was not ready within START_SECONDS.
        """
        for server in self._servers:
            server.restart_hung()
        missing, deadline = self._missing(), time.monotonic() + START_SECONDS
        if missing:
            note(f"waiting for {', '.join(map(self._described, missing))}")
        while missing and not stopped():
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"reward models not ready after {START_SECONDS:.0f} s: {', '.join(missing)}; check their logs"
                )
            for server in self._servers:
                server.check()
            time.sleep(LOOK_SECONDS)
            missing = self._missing()
        for server in self._servers:
            server.was_ready = server.was_ready or not missing

    def restart_ended(self, note: Note) -> None:
        """Restart servers that have exited."""
        for server in self._servers:
            if server.has_ended():
                note(f"reward model {server.plan.model.name} exited; restarting it: {last_error(server.log)}")
                server.end()
                server.start()

    def _missing(self) -> list[str]:
        return [name for name, url in self.urls.items() if not _is_healthy(url)]

    def _described(self, name: str) -> str:
        logs = {server.plan.model.name: server.log for server in self._servers}
        where = f"log: {logs[name]}" if name in logs else f"at {self._running[name]}"
        return f"reward model {name} ({where})"


class _Server:
    """One vLLM process. It keeps its port over restarts, so that drivers find it again."""

    def __init__(self, plan: Plan, log: Path, environment: Mapping[str, str]) -> None:
        self.plan, self.log, self.was_ready = plan, log, False
        self._port = _free_port()
        self.url = f"http://{_LOOPBACK}:{self._port}"
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(plan.gpus)} if plan.gpus else {}
        # The server must not import modules from the current folder.
        safe = {"PYTHONSAFEPATH": "1"}
        self._environment = {**reward_server.environment(len(plan.gpus)), **environment, **devices, **safe}
        self._temporary: Path | None = None
        self._child: Child | None = None

    def start(self) -> None:
        plan = self.plan
        command = reward_server.command(sys.executable, plan.model, plan.path, _LOOPBACK, self._port, len(plan.gpus))
        # Short, because names of sockets begin with it. The guard deletes it even if this process is killed.
        self._temporary = new_private_folder("rljob-rm-")
        # SIGTERM, not SIGKILL, when we die: the guard then ends vLLM's processes.
        self._child = start_child(
            [*_GUARD, str(self._temporary), *command],
            self.log,
            self._environment,
            orphaned=signal.SIGTERM,
            stdin=subprocess.PIPE,
            cleans_up=True,
        )

    def has_ended(self) -> bool:
        return self._child is not None and self._child.poll() is not None

    def check(self) -> None:
        """Raise JobError if it exited before it was ready."""
        if self.has_ended() and not self.was_ready:
            message = f"reward model {self.plan.model.name} did not start: {last_error(self.log)} (more in {self.log})"
            raise JobError(message, field=self.plan.field)

    def restart_hung(self) -> None:
        if self.was_ready and not _is_healthy(self.url):
            self.end()
            self.start()

    def end(self) -> None:
        if self._child is not None:
            end_child(self._child)
            end_session(self._child.pid)
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)  # the guard may have been killed
            self._child = None


def _is_healthy(url: str) -> bool:
    ask = build_opener(ProxyHandler({})).open
    try:
        with ask(f"{url}{reward_server.HEALTH}", timeout=HEALTH_SECONDS):
            return True
    except (OSError, HTTPException):
        return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((_LOOPBACK, 0))
        return int(taken.getsockname()[1])
