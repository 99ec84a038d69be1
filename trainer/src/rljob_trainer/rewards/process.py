"""The pool's side of one reward process: start, call, end."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from rljob_trainer.errors import InfrastructureError, RewardError
from rljob_trainer.rewards.descendants import kill_descendants
from rljob_trainer.rewards.environment import reward_environment
from rljob_trainer.rewards.protocol import Answer, Call, Failure, Inbox, Loaded, LoadFailure, Score, Setup

LOAD_SECONDS = 300.0  # reward code may load large libraries
_LOOK_SECONDS = 0.5  # polls for a dead process whose children keep the socket open
_STDERR = 2
_STARTS = 3  # attempts, if a process is killed while it loads
_WROTE = "wrote to the connection of its process"
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
"""Signals sent by the kernel (out of memory), people and container runtimes; user code can raise them too."""


class CallError(Exception):
    """A call gave no score.

    function: its index in the Setup. reason: "raised ...", "did not return ...".
    outside: the process was killed or stopped, perhaps not by the function.
    """

    def __init__(self, function: int, reason: str, *, outside: bool = False) -> None:
        super().__init__(function, reason)
        self.function = function
        self.reason = reason
        self.outside = outside


class _Silent(Exception):
    """Why the process gave no answer. outside: as in CallError."""

    def __init__(self, reason: str, *, outside: bool = False) -> None:
        super().__init__(reason)
        self.outside = outside


Scores = Mapping[int, Score]
"""What each function that scores a response returned, by its index in the Setup."""


class RewardProcess:
    """One process at a time, owned by one thread: when that thread ends, the kernel kills the process.

    After a hang or a crash, the next call starts a new process.
    """

    def __init__(self, setup: Setup, log: Path | None) -> None:
        self._setup = setup
        self._log = log
        self._lock = threading.Lock()
        self._closed = False
        self.batch = False
        """Whether a message has to be one whole group; known once it has started."""
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._readable: select.poll
        self._inbox: Inbox

    def start(self) -> None:
        """Start the process and load the functions in it, unless it runs.

        Raises:
            RewardError: a function cannot be loaded.
            InfrastructureError: no process can be started.
        """
        if self._process is not None and self._process.poll() is None and not self._stopped():
            return
        starts = 0
        while (failed := self._load()) is not None:
            (function, silent), starts = failed, starts + 1
            if not silent.outside or starts == _STARTS:
                setup = self._setup.functions[function]
                message = f"loading {setup.name!r} {silent}; see {self._log or 'its output'}, and correct the code"
                raise RewardError(message, field=setup.field) from silent

    def call(self, calls: Sequence[Call], timeout: float) -> "Iterator[Scores | CallError]":
        """Score responses one after the other with their functions, each within `timeout` seconds of its start.

        Yields for each its scores, or a CallError if a function hung, crashed, raised or returned no valid reward.
        After an error that ended the process, it yields nothing more: the remaining calls were not made.

        Raises:
            RewardError, InfrastructureError: as start().
        """
        self._ask(calls)
        for call in calls:
            scoring = [i for i, function in enumerate(self._setup.functions) if function.scores(call.data_source)]
            try:
                answers = [(function, self._answer(function, timeout)) for function in scoring]
            except CallError as error:
                yield error
                return
            failures = (CallError(i, each.reason) for i, each in answers if isinstance(each, Failure))
            yield next(failures, None) or {i: each for i, each in answers if isinstance(each, Score)}

    def end(self) -> None:
        """Kill the process and its descendants, and wait until it is gone. Only the owning thread may call it."""
        self._kill()
        if self._process is not None:
            self._process.wait()
            self._connection.close()
            self._process = None

    def close(self) -> None:
        """Kill the process and start none again. Any thread may call it; the owner still calls end()."""
        with self._lock:
            self._closed = True
            self._kill()

    def _ask(self, calls: Sequence[Call]) -> None:
        for _ in range(2):  # the process may have died between two calls
            self.start()
            try:
                return self._connection.send(calls)
            except OSError:
                self.end()
        raise InfrastructureError("reward processes die right after their start; check the memory of the machine")

    def _load(self) -> tuple[int, _Silent] | None:
        """Start a process and load the functions. Returns which function failed to load and why, if one did."""
        self.end()
        self._launch()
        loaded = 0
        try:
            self._connection.send(self._setup)
            while loaded < len(self._setup.functions):
                answer = self._receive(LOAD_SECONDS)
                if isinstance(answer, LoadFailure):
                    self.end()
                    raise RewardError(answer.message, field=answer.field)
                self.batch = self.batch or (isinstance(answer, Loaded) and answer.batch)
                loaded += 1
        except (_Silent, OSError) as error:
            silent = error if isinstance(error, _Silent) else self._how_it_ended()
            self.end()
            return loaded, silent
        return None

    def _answer(self, function: int, timeout: float) -> Score | Failure:
        try:
            answer = self._receive(timeout)
            if isinstance(answer, Score | Failure):
                return answer
            raise _Silent(_WROTE)
        except _Silent as error:
            self.end()
            raise CallError(function, str(error), outside=error.outside) from error

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "rljob_trainer.rewards.child", str(theirs.fileno()), str(os.getpid())]
        output = None
        try:
            if self._log:
                self._log.parent.mkdir(parents=True, exist_ok=True)
                output = self._log.open("ab")
            with self._lock:
                if self._closed:
                    raise InfrastructureError("the reward pool is closed")
                self._process = subprocess.Popen(
                    command,
                    env=reward_environment(os.environ, self._setup.environment),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output or _STDERR,  # stdout is for results
                    stderr=output or _STDERR,
                    start_new_session=True,  # its own process group: killed as a whole, no Ctrl-C
                )
        except OSError as error:
            raise InfrastructureError(f"cannot start a reward process: {error}") from error
        finally:
            theirs.close()
            if output:
                output.close()
            if self._process is None:
                ours.close()
        self._connection, self._readable = Connection(ours.detach()), select.poll()
        self._readable.register(self._connection, select.POLLIN)
        self._inbox = Inbox(self._connection.fileno())

    def _receive(self, seconds: float) -> Answer:
        """The next answer. A poll counts its timeout, so that time in which this process was stopped is ignored.

        Raises:
            _Silent: none came within `seconds`, or the process ended or was stopped before.
        """
        left = seconds
        while left > 0:
            look = min(left, _LOOK_SECONDS)
            try:
                if not self._inbox and self._readable.poll(look * 1000):  # Connection.poll makes a selector each time
                    self._inbox.receive()
                if self._inbox:
                    return self._inbox.next()
            except (EOFError, OSError) as error:
                raise self._how_it_ended() from error
            except ValueError as error:
                raise _Silent(_WROTE) from error
            if self._process is not None and self._process.poll() is not None and not self._connection.poll():
                raise self._how_it_ended()
            if self._stopped():
                raise _Silent("stopped its process", outside=True)
            left -= look
        raise _Silent(f"did not return within {seconds:g} s")

    def _how_it_ended(self) -> _Silent:
        try:
            code = self._process.wait(timeout=_LOOK_SECONDS) if self._process else 0
        except subprocess.TimeoutExpired:
            return _Silent("closed the connection of its process")
        if code >= 0:
            return _Silent(f"ended its process with exit code {code}")
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return _Silent(f"crashed its process: {signal.Signals(-code).name}{hint}", outside=-code in _OUTSIDE)

    def _stopped(self) -> bool:
        """Whether a signal (SIGSTOP) stopped the process, which then never answers."""
        if self._process is None or self._process.returncode is not None:
            return False
        return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            kill_descendants(process.pid)
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
