"""The file that a driver gets: a resolved job, and where its relative paths start."""

import json
import time
from pathlib import Path

import structlog

from rljob_api.contract import CONTRACT_VERSION, DriverJob
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.volume import write_json

log = structlog.get_logger()


JOB_SECONDS = 180.0
"""Kubelets look at ConfigMaps every minute, and then at what they remember of them."""


def write_job(job: DriverJob, path: Path) -> None:
    write_json(path, job.model_dump(mode="json", by_alias=True))


def read_job(path: Path) -> DriverJob:
    """Raises JobError for a file that is missing, malformed or of another contract.

    Raises InfrastructureError where the volume does not answer.
    """
    try:
        document = json.loads(path.read_text())
        newer = _is_newer(str(document.get("contractVersion")), path)
        return DriverJob.model_validate(document, extra="ignore" if newer else None)
    except (FileNotFoundError, ValueError, AttributeError) as error:
        raise JobError(f"{path} is not a resolved job: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise InfrastructureError(f"{path} cannot be read now: {reason}; look after the volume") from error


def _is_newer(version: str, path: Path) -> bool:
    """Whether the job may have fields that only a newer minor version knows. Raises JobError for another major one."""
    major, _, minor = version.partition(".")
    our_major, _, our_minor = CONTRACT_VERSION.partition(".")
    if major != our_major:
        raise JobError(
            f"{path} has contract version {version} and this trainer knows {CONTRACT_VERSION}: "
            "use a trainer image and an operator of the same major version"
        )
    newer = int(minor) > int(our_minor)
    if newer:
        log.warning("contract_is_newer", job=version, trainer=CONTRACT_VERSION)
    return newer


def job_of_generation(path: Path, generation: int, seconds: float = JOB_SECONDS) -> DriverJob:
    """As read_job, once the file has that generation of the spec or a later one.

    Raises InfrastructureError where it stays older for so long.
    """
    deadline = time.monotonic() + seconds
    while (job := read_job(path)).generation < generation:
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"{path} still has generation {job.generation} of the spec after {seconds:.0f} s, not {generation}: see"
                " whether the kubelet of the head's node renews the pod's ConfigMap"
            )
        time.sleep(1.0)
    return job
