"""vLLM servers of reward models, which live as long as `rljob run` does.

    start ──> /health answers ──> drivers send requests ──> the run ends and stops them
                   │                  └── a server that exits is restarted; drivers wait for it
                   └── a server that exits before: JobError with the last error of its log

Servers that already run (--reward-model NAME=URL) are only checked for health.
"""

import dataclasses
import os
import secrets
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
from rljob_trainer.rewards.environment import server_environment

START_SECONDS = 3600.0
"""Time for a server to become ready: it may have to download its model."""

LOOK_SECONDS = 0.5
HEALTH_SECONDS = 5.0

_LOOPBACK = "127.0.0.1"
_LISTENS = "0A"
"""State of a socket in /proc/net/tcp (net/tcp_states.h)."""

_GUARD = (*MODULE, "rljob_trainer.local.process_guard")

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A server to start.

    field: the model's field in the spec. path: of the model. gpus: devices; empty for CPUs. environment: the model's.
    """

    model: RewardModel
    field: str
    path: str
    gpus: tuple[str, ...]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


class RewardServers:
    """plans: servers to start. running: URLs of servers that already run, by name. logs: folder for their output.

    environment: of the caller; servers get the part that they need.
    keys: environment variables of those who send requests.
    """

    def __init__(
        self, plans: Sequence[Plan], running: Mapping[str, str], logs: Path, environment: Mapping[str, str]
    ) -> None:
        self._servers = [_Server(plan, logs / f"reward-model-{plan.model.name}.log", environment) for plan in plans]
        self.urls = {**running, **{server.plan.model.name: server.url for server in self._servers}}
        self.keys = {reward_server.key_variable(server.plan.model): server.key for server in self._servers}
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
        running = [name for name, url in self._running.items() if not _is_healthy(url)]
        return [*running, *(server.plan.model.name for server in self._servers if not server.is_ready())]

    def _described(self, name: str) -> str:
        logs = {server.plan.model.name: server.log for server in self._servers}
        where = f"log: {logs[name]}" if name in logs else f"at {self._running[name]}"
        return f"reward model {name} ({where})"


class _Server:
    """One vLLM process. It keeps its port over restarts, so that drivers find it again."""

    def __init__(self, plan: Plan, log: Path, environment: Mapping[str, str]) -> None:
        self.plan, self.log, self.was_ready = plan, log, False
        self._port = _free_port()
        self.url, self.key = f"http://{_LOOPBACK}:{self._port}", secrets.token_hex(32)
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(plan.gpus)} if plan.gpus else {}
        # The server must not import modules from the current folder.
        ours = {"PYTHONSAFEPATH": "1", reward_server.KEY_VARIABLE: self.key}
        given = {**server_environment(environment), **plan.environment}
        self._environment = {**reward_server.environment(len(plan.gpus)), **given, **devices, **ours}
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

    def is_ready(self) -> bool:
        """Whether it answers, and no server of another user does at its port."""
        return _is_this_users(self._port) and _is_healthy(self.url)

    def has_ended(self) -> bool:
        return self._child is not None and self._child.poll() is not None

    def check(self) -> None:
        """Raise JobError if it exited before it was ready."""
        if self.has_ended() and not self.was_ready:
            message = f"reward model {self.plan.model.name} did not start: {last_error(self.log)} (more in {self.log})"
            raise JobError(message, field=self.plan.field)

    def restart_hung(self) -> None:
        if self.was_ready and not self.is_ready():
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


def _is_this_users(port: int) -> bool:
    """Whether this user listens at the loopback port."""
    place = f"{int.from_bytes(socket.inet_aton(_LOOPBACK), sys.byteorder):08X}:{port:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1] == place and row[3] == _LISTENS and int(row[7]) == os.geteuid() for row in rows)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind((_LOOPBACK, 0))
        return int(taken.getsockname()[1])
