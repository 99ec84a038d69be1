"""Drivers that train nothing: what a test says they do, seen through Ray and through the volume.

A driver is played by hand (`head.driver().start()`, `.step(1)`, `.end(0)`) or by a script, a coroutine function that
runs from its submission until it ends:

    async def fails_at_once(driver: Driver) -> None:
        driver.start()
        driver.end(65, "Data", "no such file", "data.train[0]")

`head.driver()` is the newest one. Tests, scripts and the server run in different threads: whatever changes a head
holds its lock.
"""

import asyncio
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

State = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
Json = dict[str, Any]

STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
POLL_SECONDS = 0.01


@dataclass
class Volume:
    """What is on the run's volume. It outlives heads and drivers."""

    claims: dict[int, Json] = field(default_factory=dict)
    exits: dict[int, Json] = field(default_factory=dict)
    progress: Json | None = None
    checkpoints: list[Json] = field(default_factory=list)
    request: Json | None = None


@dataclass(eq=False)
class Driver:
    """One submission that Ray accepted. beside: those that were alive then; of one job there must never be any."""

    head: "Head"
    submission_id: str
    entrypoint: str
    runtime_env: Json | None = None
    metadata: dict[str, str] | None = None
    beside: tuple[str, ...] = ()
    state: State = "PENDING"
    stopping: bool = False
    killed: bool = False  # from outside
    frozen: int | None = None  # since when, in nanoseconds
    exit_code: int | None = None
    error: tuple[str, str] | None = None  # Ray's type and words
    start_time: int = field(default_factory=lambda: int(time.time() * 1000))
    end_time: int | None = None
    task: "asyncio.Task[None] | None" = None

    @property
    def attempt(self) -> int:
        numbered = re.search(r"-a(\d+)$", self.submission_id)
        return int(numbered[1]) if numbered else 1 + self.head.drivers.index(self)

    @property
    def alive(self) -> bool:
        return self.state in ("PENDING", "RUNNING")

    @property
    def variables(self) -> Json:
        return (self.runtime_env or {}).get("env_vars") or {}

    @property
    def stop_wait(self) -> float:
        return float(self.variables.get(STOP_WAIT, 3))

    def start(self) -> None:
        """It claims its attempt; where that or a later one is taken, it ends with code 77."""
        with self._acting():
            self.state = "RUNNING"
            volume = self.head.volume
            newest = max(volume.claims, default=0)
            owner = self.variables.get("RLJOB_UID")
            volume.claims.setdefault(self.attempt, {"attempt": self.attempt, "startTime": _now(), "owner": owner})
            if self.attempt <= newest:
                self._ended(77)
            else:
                volume.request = None  # whatever was asked before was asked of another one
                volume.progress = {**_PROGRESS, **(volume.progress or {}), "phase": "starting"}

    def step(self, step: int, total_steps: int = 100, **more: Any) -> None:
        """A step is done. more: other fields of progress, in camelCase."""
        percent = round(100 * step / total_steps, 1)
        with self._acting():
            done = {"step": step, "totalSteps": total_steps, "percent": percent, "stage": "rl", "policyVersion": step}
            self.head.volume.progress = {**(self.head.volume.progress or _PROGRESS), "phase": "rollout", **done, **more}

    def checkpoint(self, step: int) -> None:
        """It is durable; a request for one is fulfilled."""
        with self._acting():
            path = f"/checkpoints/step-{step}-a{self.attempt}"
            self.head.volume.checkpoints.append(
                {"step": step, "attempt": self.attempt, "time": _now(), "reward": 0.5, "validationReward": None}
                | {"path": path, "bytes": 1 << 20}
            )
            self.head.volume.request = None

    def freeze(self) -> None:
        """It is there, and does nothing any more: no sign of life, and it does not listen."""
        with self._acting():
            self.frozen = time.time_ns()

    @property
    def heartbeat(self) -> int:
        return self.frozen or time.time_ns()

    def end(self, code: int, reason: str = "Done", message: str = "", field: str | None = None) -> None:
        """It ends and leaves a record."""
        with self._acting():
            record = {"code": code, "reason": reason, "message": message, "field": field}
            self.head.volume.exits[self.attempt] = record
            self._ended(code)

    def crash(self, code: int = -9) -> None:
        """It ends without a word. code: -N for signal N."""
        with self._acting():
            self._ended(code)

    def stop(self) -> bool:
        """What Ray does on a stop: SIGTERM, which scripts see as `stopping`, and after a while SIGKILL."""
        with self.head.lock:
            if not self.alive:
                return False
            if not self.stopping:
                self.stopping = True
                asyncio.get_running_loop().call_later(self.stop_wait, self._kill)
            return True

    def vanish(self) -> None:
        """Its machine is gone."""
        with self.head.lock:
            if self.alive:
                self.killed = True
                self._finish("FAILED")

    def _kill(self) -> None:
        with self.head.lock:
            if self.alive:
                self.killed = True
                self._ended(-9)

    def _ended(self, code: int) -> None:
        if self.stopping:
            self._finish("STOPPED")  # Ray does not look how
            return
        self.exit_code = code
        if code:
            words = (
                f"Job entrypoint command failed with exit code {code}, last available logs (truncated to 20,000 chars):"
            )
            self.error = ("JOB_ENTRYPOINT_COMMAND_ERROR", f"{words}\nRunning entrypoint for job {self.submission_id}\n")
        self._finish("FAILED" if code else "SUCCEEDED")

    def _finish(self, state: State) -> None:
        self.state, self.end_time = state, int(time.time() * 1000)
        if self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    @contextmanager
    def _acting(self) -> Iterator[None]:
        with self.head.lock:
            if self.killed:
                raise asyncio.CancelledError  # the script's task may not know it yet
            if not self.alive:
                raise AssertionError(f"driver {self.submission_id} does something, but it has ended: {self.state}")
            yield


Script = Callable[[Driver], Coroutine[None, None, None]]


@dataclass(eq=False)
class Head:
    """One head pod and its volume. drivers: all that were ever accepted, in order, through all restarts of the head.

    requests: all that came to the agent.
    A token that is None is any.
    """

    script: Script | None = None
    ray_token: str | None = None
    agent_token: str | None = None
    volume: Volume = field(default_factory=Volume)
    drivers: list[Driver] = field(default_factory=list)
    known: dict[str, Driver] = field(default_factory=dict)
    requests: list[Json] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def driver(self, submission_id: str | None = None) -> Driver:
        """The newest; that of an id, if given."""
        with self.lock:
            return self.known[submission_id] if submission_id else self.drivers[-1]

    def submit(self, driver: Driver) -> bool:
        """False where Ray has one of that id."""
        with self.lock:
            if driver.submission_id in self.known:
                return False
            driver.beside = tuple(other.submission_id for other in self.drivers if other.alive)
            self.drivers.append(driver)
            self.known[driver.submission_id] = driver
            if self.script is not None:
                driver.task = asyncio.create_task(self.script(driver))
            return True

    def restart(self) -> None:
        """The head's container starts anew: its drivers are gone and Ray has forgotten them; the volume has not."""
        with self.lock:
            for driver in self.drivers:
                driver.vanish()
            self.known.clear()


def train(steps: int = 10, *, seconds: float = 0.02, every: int = 5) -> Script:
    """A run that goes well: steps of that many seconds, a checkpoint after each `every` and where one is asked for.

    It goes on after its newest checkpoint and, where it is asked to stop, ends with code 76.
    """

    async def script(driver: Driver) -> None:
        driver.start()
        volume = driver.head.volume
        begun = volume.checkpoints[-1]["step"] if volume.checkpoints else 0
        for step in range(begun + 1, steps + 1):
            await asyncio.sleep(seconds)
            driver.step(step, steps)
            asked = {"stop": True} if driver.stopping else volume.request
            if asked or step % every == 0 or step == steps:
                driver.checkpoint(step)
            if asked and asked["stop"]:
                return driver.end(76, "StoppedOnRequest", f"stopped after step {step}")
        return driver.end(0, "Done", "trained to the last step")

    return script


async def until(holds: Callable[[], object]) -> None:
    """For scripts: wait until something is true, such as `lambda: driver.stopping`."""
    while not holds():  # noqa: ASYNC110  tests change it from their own thread
        await asyncio.sleep(POLL_SECONDS)


_PROGRESS: Json = {
    "step": 0, "totalSteps": 0, "percent": 0.0, "eta": None, "phase": "", "stage": "", "reward": None,
    "validationReward": None, "responseTokens": None, "tokensPerSecond": None, "engineDifference": None,
    "engineTolerance": None,
    "policyVersion": 0,
}  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
