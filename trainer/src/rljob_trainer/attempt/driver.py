"""`rljob driver`: one attempt, from its claim to its exit record.

`rljob run` and the operator start it; it never restarts itself. Ray is imported once stop signals are held.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated

import structlog
import typer

from rljob_api.contract import GENERATION_VARIABLE, OWNER_VARIABLE, ExitCode, ExitRecord
from rljob_trainer.attempt.claim import claim, exit_record, record_exit
from rljob_trainer.attempt.frozen_drivers import end_frozen
from rljob_trainer.attempt.interrupt import STOPPED_EARLY, Interrupt, hold_signals
from rljob_trainer.attempt.job_file import job_of_generation
from rljob_trainer.errors import InfrastructureError, StoppedOnRequest
from rljob_trainer.local.private_folder import read_private
from rljob_trainer.loop.requests import Requests
from rljob_trainer.progress import logging
from rljob_trainer.progress.presence import present
from rljob_trainer.progress.reporter import ProgressReporter
from rljob_trainer.volume import Volume

if TYPE_CHECKING:
    from rljob_trainer.attempt.wiring import Wiring

log = structlog.get_logger()

RAY_SECONDS = 120.0
"""Deadline of Ray's start, and of connecting to it."""


def driver(
    job: Annotated[Path, typer.Option(help="The resolved job, as JSON.")],
    directory: Annotated[Path, typer.Option("--dir", help="The run's volume.")],
    attempt: Annotated[int, typer.Option(min=1, help="Number of this attempt; every start takes a new one.")],
    ray_address: Annotated[
        str, typer.Option(help="Address of the Ray cluster, or file:PATH of a file that will hold it.")
    ] = "auto",
) -> None:
    """Run one attempt of a job and leave an exit record. The exit code tells the supervisor how to recover."""
    hold_signals()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.configure(json=True, file=Volume(directory).log(attempt))
    sys.exit(drive(job, directory.resolve(), attempt, ray_address).code)


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
    import ray

    from rljob_trainer.attempt.wiring import Wiring

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
            with interrupt.postponed():
                _connect(address, f"rljob-{job.uid}", partial(_end, volume, attempt))
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


def _end(volume: Volume, attempt: int, error: BaseException | None) -> ExitRecord:
    record = record_exit(volume, attempt, error)
    log.info("attempt_ended", code=record.code, reason=record.reason, message=record.message)
    return record


@contextmanager
def ending_well(wiring: "Wiring") -> "Iterator[Wiring]":
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


def _connect(address: str, namespace: str, record: Callable[[InfrastructureError], object]) -> None:
    """ray.init may wait forever: at RAY_SECONDS, a thread records that and ends the process."""
    import ray
    from ray.exceptions import RayError

    def give_up() -> None:
        error = InfrastructureError(f"waited {RAY_SECONDS:.0f} s for Ray at {address} to answer")
        record(error)
        os._exit(error.exit_code)

    deadline = Timer(RAY_SECONDS, give_up)
    deadline.start()
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="error")
    except (RayError, ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise InfrastructureError(f"connecting to Ray at {address} failed: {error}") from error
    finally:
        deadline.cancel()


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
