"""The driver's input file: a resolved job."""

import json
import time
from pathlib import Path

import structlog

from rljob_api.contract import CONTRACT_VERSION, DriverJob
from rljob_trainer.errors import InfrastructureError, JobError, storage_error
from rljob_trainer.volume import write_json

log = structlog.get_logger()

JOB_SECONDS = 180.0
"""A kubelet syncs ConfigMaps every minute, from a cache that may be a minute old."""


def write_job(job: DriverJob, path: Path) -> None:
    write_json(path, job.model_dump(mode="json", by_alias=True))


def read_job(path: Path) -> DriverJob:
    """Raises JobError if the file is missing, invalid or of another contract, InfrastructureError if unreadable."""
    try:
        document = json.loads(path.read_text())
        newer = _is_newer(str(document.get("contractVersion")), path)
        return DriverJob.model_validate(document, extra="ignore" if newer else None)
    except (FileNotFoundError, ValueError, AttributeError) as error:
        raise JobError(f"{path} is not a resolved job: {error}") from error
    except OSError as error:
        raise storage_error(error, f"{path} cannot be read") from error


def _is_newer(version: str, path: Path) -> bool:
    """Whether the job has a newer minor version, whose new fields are ignored. Raises JobError for another major."""
    major, _, minor = version.partition(".")
    our_major, _, our_minor = CONTRACT_VERSION.partition(".")
    if major != our_major:
        raise JobError(
            f"{path} has contract version {version}, but this trainer supports {CONTRACT_VERSION}; "
            "use a trainer image and an operator with the same major version"
        )
    newer = int(minor) > int(our_minor)
    if newer:
        log.warning("contract_is_newer", job=version, trainer=CONTRACT_VERSION)
    return newer


def job_of_generation(path: Path, generation: int, seconds: float = JOB_SECONDS) -> DriverJob:
    """Wait for that generation of the spec or a later one. Raises InfrastructureError at the deadline."""
    deadline = time.monotonic() + seconds
    while (job := read_job(path)).generation < generation:
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"{path} still has generation {job.generation} of the spec after {seconds:.0f} s, not {generation}; "
                "check that the kubelet on the head pod's node updates the ConfigMap"
            )
        time.sleep(1.0)
    return job
