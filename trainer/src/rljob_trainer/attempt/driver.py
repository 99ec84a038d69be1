"""One attempt, from its claim to its exit record. Only its supervisor restarts it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import ray
import structlog
from ray.exceptions import RayError

from rljob_api.contract import GENERATION_VARIABLE, OWNER_VARIABLE, ExitCode, ExitRecord
from rljob_trainer.attempt.claim import claim, exit_record, record_exit
from rljob_trainer.attempt.connecting import bounded
from rljob_trainer.attempt.frozen_drivers import end_frozen
from rljob_trainer.attempt.interrupt import STOPPED_EARLY, Interrupt
from rljob_trainer.attempt.job_file import job_of_generation
from rljob_trainer.attempt.wiring import Wiring
from rljob_trainer.errors import InfrastructureError, RLJobError, StoppedOnRequest
from rljob_trainer.local.private_folder import read_private
from rljob_trainer.loop.requests import Requests
from rljob_trainer.progress.presence import present
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume

log = structlog.get_logger()

RAY_SECONDS = 120.0
"""Deadline of Ray's start, and of connecting to it."""


def drive(job_file: Path, root: Path, attempt: int, ray_address: str) -> ExitRecord:
    """Run attempt `attempt` of a resolved job on the volume `root`.

    ray_address: of the Ray cluster, or file:PATH of a file that will contain it.
    The exit record reports every failure, except FencedError if the attempt's number is taken, which is raised.
    """
    volume = Volume(root)
    nonce = claim(volume, attempt, os.environ.get(OWNER_VARIABLE))
    with present(volume, attempt):
        return _drive(job_file, volume, attempt, nonce, ray_address)


def _drive(job_file: Path, volume: Volume, attempt: int, nonce: str, ray_address: str) -> ExitRecord:
    end_frozen(volume.root, attempt)
    error: BaseException | None = None
    interrupt = Interrupt()
    try:
        with ProgressReporter(volume) as progress:
            interrupt.listen()
            requests = Requests(volume, interrupt.asked)
            progress.phase("waiting for Ray")
            job = job_of_generation(job_file, int(os.environ.get(GENERATION_VARIABLE, "0")))
            address = _appeared(ray_address)
            with (
                interrupt.postponed(),
                bounded(RAY_SECONDS, f"Ray at {address} to answer", partial(_end_early, volume, attempt)),
            ):
                _connect(address, namespace=f"rljob-{job.uid}")
            with ending_well(Wiring(job, volume, attempt, nonce, progress, requests)) as wiring:
                wiring.run(interrupt.wait_for_steps)
    except BaseException as raised:
        # Before the loop a signal raises anywhere; Ray's code may turn it into another error.
        error = StoppedOnRequest(STOPPED_EARLY) if interrupt.end_start() else raised
        if isinstance(error, StoppedOnRequest):
            log.info("attempt_stopped", reason=str(error))
        else:
            log.exception("attempt_failed")
    finally:
        ray.shutdown()
    return _end(volume, attempt, error)


def _end_early(volume: Volume, attempt: int, error: RLJobError) -> None:
    log.info("attempt_stopped", reason=str(error))
    _end(volume, attempt, error)


def _end(volume: Volume, attempt: int, error: BaseException | None) -> ExitRecord:
    record = record_exit(volume, attempt, error)
    log.info("attempt_ended", code=record.code, reason=record.reason, message=record.message)
    return record


@contextmanager
def ending_well(wiring: Wiring) -> Iterator[Wiring]:
    """Keep the workers for the next driver after failures that a supervisor retries."""
    error: BaseException | None = None
    try:
        yield wiring
    except BaseException as raised:
        error = raised
        raise
    finally:
        code = exit_record(error).code
        # The workers of a fenced driver belong to another attempt.
        wiring.close(error, end_workers=code not in (ExitCode.BUG, ExitCode.INFRASTRUCTURE, ExitCode.FENCED))


def _connect(address: str, namespace: str) -> None:
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="error")
    except (RayError, ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise InfrastructureError(f"connecting to Ray at {address} failed: {error}") from error


def _appeared(address: str) -> str:
    """The address, or the content of file:PATH once that file exists."""
    if not address.startswith("file:"):
        return address
    path = Path(address.removeprefix("file:"))
    deadline = time.monotonic() + RAY_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise InfrastructureError(f"waited {RAY_SECONDS:.0f} s for Ray to start")
        time.sleep(0.05)
    try:
        return read_private(path)
    except OSError as error:
        raise InfrastructureError(f"reading the address of Ray failed: {error}") from error
