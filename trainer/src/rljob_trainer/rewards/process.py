"""The pool's side of one reward process: start it, ask it, end it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards.protocol import Call, Failure, LoadFailure, Score, Setup

LOAD_SECONDS = 300.0  # reward code may load large libraries
_LOOK_SECONDS = 0.5  # a process that died while its own children hold the socket open shows only by looking
_STDERR = 2


class CallError(Exception):
    """A call gave no score. function: its index in rewards.functions. reason: "raised ...", "did not return ..."."""

    def __init__(self, function: int, reason: str) -> None:
        super().__init__(function, reason)
        self.function = function
        self.reason = reason


class _Silent(Exception):
    """The process gave no answer, and why."""


class RewardProcess:
    """One process at a time, owned by one thread: when that thread ends, the kernel kills the process.

    A hang or a crash costs the process; the next call starts another.
    """

    def __init__(self, setup: Setup, log: Path | None) -> None:
        self._setup = setup
        self._log = log
        self._lock = threading.Lock()
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection

    def start(self) -> None:
        """Start the process and load the functions in it, unless it runs.

        Raises:
            RewardError: a function cannot be loaded.
            InfrastructureError: no process can be started.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.end()
        self._launch()
        try:
            self._connection.send(self._setup)
            answer = self._receive(LOAD_SECONDS)
        except (_Silent, OSError) as error:
            self.end()
            message = f"loading the functions {error}; look into its output"
            raise RewardError(message, field="spec.rewards.functions") from error
        if isinstance(answer, LoadFailure):
            self.end()
            raise RewardError(answer.message, field=answer.field)

    def call(self, call: Call, timeout: float) -> list[Score]:
        """Score one response with every function, each within `timeout` seconds of its start.

        Raises:
            CallError: a function hung, crashed, raised, or returned what is no reward.
            RewardError, InfrastructureError: as start().
        """
        self._ask(call)
        answers = [self._answer(function, timeout) for function in range(len(self._setup.functions))]
        for function, answer in enumerate(answers):
            if isinstance(answer, Failure):
                raise CallError(function, answer.reason)
        return [answer for answer in answers if isinstance(answer, Score)]

    def end(self) -> None:
        """Kill the process and what it started, and wait until it is gone. For the thread that owns it."""
        self._kill()
        if self._process is not None:
            self._process.wait()
            self._connection.close()
            self._process = None

    def close(self) -> None:
        """Kill the process, and start none again. From any thread; the owner still calls end()."""
        with self._lock:
            self._closed = True
            self._kill()

    def _ask(self, call: Call) -> None:
        for _ in range(2):  # a process that died between two calls is nobody's fault
            self.start()
            try:
                return self._connection.send(call)
            except OSError:
                self.end()
        raise InfrastructureError("reward processes die as soon as they have started")

    def _answer(self, function: int, timeout: float) -> Score | Failure:
        try:
            answer: Score | Failure = self._receive(timeout)
        except _Silent as error:
            self.end()
            raise CallError(function, str(error)) from error
        return answer

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "rljob_trainer.rewards.child", str(theirs.fileno()), str(os.getpid())]
        output = self._log.open("ab") if self._log else None
        try:
            with self._lock:
                if self._closed:
                    raise InfrastructureError("the reward pool is closed")
                self._process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output or _STDERR,  # our own standard output is for results
                    stderr=output or _STDERR,
                    start_new_session=True,  # a process group to kill, and no Ctrl-C
                )
        except OSError as error:
            raise InfrastructureError(f"cannot start a reward process: {error}") from error
        finally:
            theirs.close()
            if output:
                output.close()
            if self._process is None:
                ours.close()
        self._connection = Connection(ours.detach())

    def _receive(self, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self._connection.poll(min(left, _LOOK_SECONDS)):
                    return self._connection.recv()
            except (EOFError, OSError) as error:
                raise _Silent(self._how_it_ended()) from error
            if self._process is not None and self._process.poll() is not None and not self._connection.poll():
                raise _Silent(self._how_it_ended())
        raise _Silent(f"did not return within {seconds:g} s")

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=_LOOK_SECONDS) if self._process else 0
        except subprocess.TimeoutExpired:
            return "closed the connection of its process"
        if code >= 0:
            return f"ended its process with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"crashed its process: {signal.Signals(-code).name}{hint}"

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
