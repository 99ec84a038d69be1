"""One attempt, from its claim to its exit record. It never restarts itself: its supervisor does that."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import ray
import structlog

from rljob_api.contract import ExitCode, ExitRecord
from rljob_trainer.controller.assembly import Assembly
from rljob_trainer.controller.attempt import claim, exit_record, record_exit
from rljob_trainer.controller.job import read_job
from rljob_trainer.controller.requests import Requests
from rljob_trainer.errors import InfrastructureError, StoppedOnRequest
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume

log = structlog.get_logger()

RAY_SECONDS = 120.0
"""Deadline of Ray's start."""

STOPPED_EARLY = "stopped before the first step of this attempt"

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def drive(job_file: Path, root: Path, attempt: int, ray_address: str) -> ExitRecord:
    """Run attempt `attempt` of a resolved job on the volume `root`.

    ray_address: of the Ray cluster, or file:PATH of a file in which it will appear.
    Whatever happens, the exit record says it. Raises FencedError where the attempt's number is taken.
    """
    volume = Volume(root)
    nonce = claim(volume, attempt)
    error: BaseException | None = None
    interrupt = Interrupt()
    try:
        with interruptible(interrupt), ProgressReporter(volume) as progress:
            requests = Requests(volume, interrupt.asked)
            progress.phase("waiting for Ray")
            job = read_job(job_file)
            _connect(ray_address, namespace=f"rljob-{job.uid}")
            interrupt.listen()  # Ray put a handler of its own in its place
            with ending_well(Assembly(job, volume, attempt, nonce, progress, requests)) as assembly:
                assembly.run(interrupt.wait_for_steps)
    except BaseException as raised:
        # Before the loop a signal raises wherever the driver is; inside Ray's own code it comes out as another error.
        error = StoppedOnRequest(STOPPED_EARLY) if interrupt.ended_start else raised
        log.exception("attempt_failed")
    finally:
        ray.shutdown()
    record = record_exit(volume, attempt, error)
    log.info("attempt_ended", code=record.code, reason=record.reason)
    return record


@contextmanager
def ending_well(assembly: Assembly) -> Iterator[Assembly]:
    """Leave workers to the next driver where there will be one: after trouble that may pass."""
    error: BaseException | None = None
    try:
        yield assembly
    except BaseException as raised:
        error = raised
        raise
    finally:
        code = exit_record(error).code
        # A fenced driver's workers are another's, and so they are not ended either.
        assembly.close(error, end_workers=code not in (ExitCode.BUG, ExitCode.INFRASTRUCTURE, ExitCode.FENCED))


@dataclass(slots=True)
class Interrupt:
    """What SIGTERM and SIGINT do.

    The first asks to save and stop after the step that runs; before the loop runs there is nothing to save, and it ends
    the attempt. The second ends the process.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    steps_run: bool = False

    def listen(self) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, self._handle)

    @property
    def ended_start(self) -> bool:
        return self.asked.is_set() and not self.steps_run

    def wait_for_steps(self) -> None:
        """From now on, a step runs and somebody looks whether `asked` is set."""
        self.steps_run = True

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.asked.is_set():
            os._exit(128 + number)
        self.asked.set()
        if not self.steps_run:
            raise StoppedOnRequest(STOPPED_EARLY)


@contextmanager
def interruptible(interrupt: Interrupt) -> Iterator[None]:
    """Handle signals, and leave the process's own handlers as they were."""
    previous = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    interrupt.listen()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _connect(address: str, namespace: str) -> None:
    if address.startswith("file:"):
        address = _read_soon(Path(address.removeprefix("file:")))
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise InfrastructureError(f"no Ray cluster answers at {address}: {error}") from error


def _read_soon(path: Path) -> str:
    deadline = time.monotonic() + RAY_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise InfrastructureError(f"waited {RAY_SECONDS:.0f} s for Ray to start")
        time.sleep(0.05)
    return path.read_text()
