"""One local run, from a file to an exit code. It supervises the driver as the operator does in a cluster.

    rljob run ──> ray_head      Ray, whose processes the driver uses
              ──> driver        one attempt; its exit record says how it ended
              ──> agent         serves the run's files
              ──> view          of the same files, in this process

The children start together: the driver imports what it needs while Ray comes up.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rljob_api.contract import ExitCode, ExitRecord
from rljob_trainer.controller.attempt import exit_record, read_exit
from rljob_trainer.controller.job import DriverJob
from rljob_trainer.errors import RLJobError
from rljob_trainer.local.machine import Child, end_child, last_line, start_child
from rljob_trainer.local.prepare import LocalRun, writable
from rljob_trainer.local.ray_cluster import LocalRay, local_ray, ray_environment
from rljob_trainer.progress.state import last_attempt
from rljob_trainer.progress.views import Reporter, Style, open_reporter
from rljob_trainer.volume import Volume

POLL_SECONDS = 0.2

ORPHAN_SECONDS = 5.0
"""How long a driver may take to notice that Ray is gone."""

PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait for one another give up the core, which ranks, engines and rewards share. On two busy cores a small
model's step took three times as long with two spinning threads as with one, and two thirds as long with two patient."""

RLJOB = (sys.executable, "-m", "rljob_trainer.cli")


def supervise(run: LocalRun, uid: str, style: Style | None, agent_port: int) -> int:
    """Run one attempt and show it. Returns the exit code of `rljob run`. Call it from the main thread."""
    view = open_reporter(run.info(uid), style)
    view.start()
    for note in run.notes:
        view.note(note)
    with interrupts() as stop:
        try:
            record = _attempt(run, uid, view, stop, agent_port)
        except RLJobError as error:
            record = exit_record(error)
    view.finish(record)
    return record.code


@dataclass(slots=True)
class Stop:
    """times: how often somebody asked to stop. signal: the last one. driver: who is told."""

    times: int = 0
    signal: int = 0
    driver: Child | None = None

    def record(self) -> ExitRecord:
        """Of a driver that was stopped and left no record."""
        if self.times == 1:
            return ExitRecord(code=ExitCode.STOPPED, reason="StoppedOnRequest", message="stopped before it trained")
        return ExitRecord(code=128 + self.signal, reason="Interrupted", message="stopped at once, without a checkpoint")


@contextmanager
def interrupts() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM are the driver's: the first asks it to save and stop, the second ends it."""
    stop = Stop()

    def forward(number: int, _: FrameType | None) -> None:
        stop.times, stop.signal = stop.times + 1, number
        if stop.driver is not None:
            stop.driver.send_signal(signal.SIGTERM if stop.times == 1 else signal.SIGKILL)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _attempt(run: LocalRun, uid: str, view: Reporter, stop: Stop, agent_port: int) -> ExitRecord:
    volume, attempt = run.volume, last_attempt(run.volume) + 1
    environment = {**PATIENT_THREADS, **os.environ, **run.environment, **ray_environment()}
    job_file = volume.control / "job.json"
    with writable(volume):
        DriverJob(name=run.name, uid=uid, base_dir=str(run.base_dir), spec=run.spec).write(job_file)
        volume.logs.mkdir(exist_ok=True)
    with (
        local_ray(run.gpus, volume.logs / "ray.log", environment) as ray,
        _driver(volume, attempt, job_file, ray, environment) as driver,
        _agent(volume, agent_port, environment) as agent,
    ):
        stop.driver = driver
        if stop.times:  # it came before the driver could be told
            driver.kill()
        _follow(driver, ray, agent, view, stop)
    return read_exit(volume, attempt) or (stop.record() if stop.times else lost(driver.returncode, volume))


def _follow(driver: Child, ray: LocalRay, agent: "Agent", view: Reporter, stop: Stop) -> None:
    """Until the driver has ended."""
    told = False
    while driver.poll() is None:
        if stop.times and not told:
            view.note("stopping: the step that runs is finished and saved first; Ctrl-C again stops at once")
            told = True
        if news := agent.news():
            view.note(news)
        view.poll()
        if ray.head.poll() is not None:
            _end_orphan(driver, ray)
        time.sleep(POLL_SECONDS)


def _end_orphan(driver: Child, ray: LocalRay) -> None:
    """Ray is gone: the driver notices and says so in its record, or is ended here. Raises InfrastructureError then."""
    try:
        driver.wait(ORPHAN_SECONDS)
    except subprocess.TimeoutExpired:
        driver.kill()
        ray.check()


@contextmanager
def _driver(
    volume: Volume, attempt: int, job_file: Path, ray: LocalRay, environment: Mapping[str, str]
) -> Iterator[Child]:
    child = start_child(
        [*RLJOB, "driver", "--job", str(job_file), "--dir", str(volume.root), "--attempt", str(attempt),
         "--ray-address", f"file:{ray.address_file}"],
        volume.logs / "driver.log",
        environment,
    )  # fmt: skip
    try:
        yield child
    finally:
        end_child(child)


@dataclass(slots=True)
class Agent:
    """The agent, and whether it has been announced."""

    child: Child
    log: Path
    token_file: Path
    announced: bool = False

    def news(self) -> str | None:
        """Where it listens, or that it does not; once."""
        said = "" if self.announced else last_line(self.log)
        if "http://" in said:
            self.announced = True
            return f"{said}, token in {self.token_file}"
        if not self.announced and self.child.poll() is not None:
            self.announced = True
            return f"the agent did not start: {said}"
        return None


@contextmanager
def _agent(volume: Volume, port: int, environment: Mapping[str, str]) -> Iterator[Agent]:
    token_file = volume.control / "agent-token"
    token_file.unlink(missing_ok=True)
    token_file.touch(mode=0o600)
    token_file.write_text(secrets.token_urlsafe(32))
    log = volume.logs / "agent.log"
    child = start_child(
        [*RLJOB, "agent", "--dir", str(volume.root), "--host", "127.0.0.1", "--port", str(port),
         "--token-file", str(token_file)],
        log,
        environment,
    )  # fmt: skip
    try:
        yield Agent(child, log, token_file)
    finally:
        end_child(child)
        token_file.unlink(missing_ok=True)


def lost(code: int, volume: Volume) -> ExitRecord:
    """What is known of a driver that left no record."""
    how = f"signal {-code} ended it" if code < 0 else last_line(volume.logs / "driver.log") or f"it ended with {code}"
    known = code if code in list(ExitCode) else ExitCode.INFRASTRUCTURE
    return ExitRecord(code=known, reason="DriverLost", message=f"the driver left no record: {how}")
