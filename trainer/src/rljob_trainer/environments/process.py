"""The pool's side of one environment process: start, play, end. For one thread: the event loop of the rollout host."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rljob_trainer
from rljob_trainer.environments.wire import WrongMessage, pack_plain, read_json
from rljob_trainer.errors import EnvironmentFailed, InfrastructureError
from rljob_trainer.rewards.descendants import kill_descendants
from rljob_trainer.rewards.environment import reward_environment

LOAD_SECONDS = 300.0  # the code may load large libraries
_STARTS = 3  # tries, if a process is killed while it loads
_LOOK_SECONDS = 0.5  # between looks for a process that a signal stopped
_STDERR = 2
_KINDS = ("call", "end", "raised")  # what a process may say of an episode
_FOREIGN = """
import importlib.util, sys
folder = sys.argv.pop(1)
file = folder + "/__init__.py"
found = importlib.util.spec_from_file_location("rljob_trainer", file, submodule_search_locations=[folder])
sys.modules["rljob_trainer"] = importlib.util.module_from_spec(found)
from rljob_trainer.environments.child import main
main()
"""
"""Makes this package importable for another interpreter, and nothing else of this one's."""

Inbox = asyncio.Queue[tuple[Any, ...]]
"""Messages for one episode, without its number; ("lost", reason) is the last one if the process ended."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """setup: the first message to the process. python: its interpreter. variables: that it may see. log: its output."""

    setup: Mapping[str, Any]
    python: str | None
    variables: tuple[str, ...]
    log: Path | None


@dataclass(eq=False, slots=True)
class EnvironmentProcess:
    """One process. playing: inboxes of its episodes. condemned: it gets no further episode, and ends with its last."""

    settings: ProcessSettings
    playing: dict[int, Inbox] = field(default_factory=dict)
    condemned: bool = False
    _process: "subprocess.Popen[bytes] | None" = None
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None
    _tasks: "list[asyncio.Task[None]]" = field(default_factory=list)

    async def start(self) -> None:
        """Start the process and load the code in it; again if it is killed meanwhile.

        Raises EnvironmentFailed for code that cannot be loaded, InfrastructureError if no process can be started.
        """
        for tries_left in reversed(range(_STARTS)):
            if await self._load(last=not tries_left):
                self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]
                return

    async def _load(self, *, last: bool) -> bool:
        """One try. Returns False if the process was killed, unless it is the last one."""
        ours, theirs = socket.socketpair()
        try:
            self._process = self._launch(theirs)
        except OSError as error:
            ours.close()
            if self.settings.python is not None:
                raise EnvironmentFailed(
                    f"{self.settings.python} cannot be run: {error.strerror}; name a Python interpreter",
                    field="spec.environment.python",
                ) from error
            raise InfrastructureError(f"cannot start an environment process: {error}") from error
        finally:
            theirs.close()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._writer.write(pack_plain(self.settings.setup))
        try:
            loaded = await asyncio.wait_for(self._first_message(self._reader), LOAD_SECONDS)
        except (asyncio.IncompleteReadError, OSError, WrongMessage, TimeoutError) as error:
            reason = f"took more than {LOAD_SECONDS:g} s" if isinstance(error, TimeoutError) else self._how_it_ended()
            killed = self._process.returncode in (-signal.SIGKILL, -signal.SIGTERM)
            self._kill()
            if killed and not last:
                return False
            where = self.settings.log or "its output"
            raise EnvironmentFailed(
                f"loading the code {reason}; see {where}, and correct the code", field="spec.environment"
            ) from error
        if loaded[0] != "loaded":
            self._kill()
            raise EnvironmentFailed(str(loaded[1]), field=str(loaded[2]))
        return True

    async def _first_message(self, reader: asyncio.StreamReader) -> Any:
        """What the process says of its code. A process that a signal stopped is killed, for it never answers."""
        reading = asyncio.ensure_future(read_json(reader))
        try:
            while not (await asyncio.wait([reading], timeout=_LOOK_SECONDS))[0]:
                if self._process is not None and self.stopped():
                    os.killpg(self._process.pid, signal.SIGKILL)
            return reading.result()
        finally:
            reading.cancel()

    def play(self, number: int, task: tuple[Any, ...], sample: int) -> Inbox:
        """Begin an episode. Returns the inbox with what the process says of it."""
        inbox: Inbox = asyncio.Queue()
        self.playing[number] = inbox
        self.send("play", number, task, sample)
        return inbox

    def send(self, *message: Any) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack_plain(*message))

    def forget(self, number: int) -> None:
        """End an episode, whatever state it is in; the process with it if that was its last one."""
        if self.playing.pop(number, None) is not None:
            self.send("cancel", number)
        if self.condemned and not self.playing:
            self.end()

    def end(self) -> None:
        """Kill the process and what it started. May be called twice."""
        self.condemned = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._kill()
        for inbox in self.playing.values():
            inbox.put_nowait(("lost", "its process was ended"))

    @property
    def alive(self) -> bool:
        return self._process is not None

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_descendants(process.pid)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._writer is not None:
            self._writer.close()

    def _launch(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        numbers = [str(theirs.fileno()), str(os.getpid())]
        if self.settings.python is None:
            command = [sys.executable, "-P", "-m", "rljob_trainer.environments.child", *numbers]
        else:
            command = [self.settings.python, "-P", "-c", _FOREIGN, str(Path(rljob_trainer.__file__).parent), *numbers]
        output = None
        if self.settings.log is not None:
            self.settings.log.parent.mkdir(parents=True, exist_ok=True)
            output = self.settings.log.open("ab")
        try:
            return subprocess.Popen(
                command,
                env=_loopback(reward_environment(os.environ, self.settings.variables)),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output or _STDERR,  # stdout is for results
                stderr=output or _STDERR,
                start_new_session=True,  # its own process group: killed as a whole, no Ctrl-C
            )
        finally:
            if output is not None:
                output.close()

    async def _read(self) -> None:
        assert self._reader is not None
        try:
            while True:
                kind, number, *rest = await read_json(self._reader)
                inbox = self.playing.get(number) if isinstance(number, int) else None
                if inbox is not None and kind in _KINDS:
                    inbox.put_nowait((kind, *rest))
        except (WrongMessage, ValueError, TypeError):
            self._lose("wrote to the connection of its process")
        except (asyncio.IncompleteReadError, OSError):
            self._lose(self._how_it_ended())

    async def _watch(self) -> None:
        while self._process is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.stopped():
                self._lose("stopped its process")
                return

    def stopped(self) -> bool:
        """Whether a signal (SIGSTOP) stopped the process, which then never answers."""
        process = self._process
        if process is None or process.returncode is not None:
            return False
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False

    def _lose(self, reason: str) -> None:
        for inbox in self.playing.values():
            inbox.put_nowait(("lost", reason))
        self.playing = {}
        self.end()

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=_LOOK_SECONDS) if self._process else 0
        except subprocess.TimeoutExpired:
            return "closed the connection of its process"
        if code >= 0:
            return f"ended its process with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"crashed its process: {signal.Signals(-code).name}{hint}"


def _loopback(variables: dict[str, str]) -> dict[str, str]:
    """The variables, so that a proxy which one of them names gets no requests to the endpoint."""
    direct = {name: ",".join(filter(None, [variables.get(name), "127.0.0.1"])) for name in ("no_proxy", "NO_PROXY")}
    return {**variables, **direct}
