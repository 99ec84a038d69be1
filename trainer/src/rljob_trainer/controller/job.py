"""The file that a driver gets: a resolved job, and where its relative paths start."""

import json
from pathlib import Path

from rljob_api.contract import CONTRACT_VERSION, DriverJob
from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.volume import write_json


def write_job(job: DriverJob, path: Path) -> None:
    write_json(path, job.model_dump(mode="json", by_alias=True))


def read_job(path: Path) -> DriverJob:
    """Raises JobError for a file that is missing, malformed or of another contract.

    Raises InfrastructureError where the volume does not answer.
    """
    try:
        document = json.loads(path.read_text())
        version = str(document.get("contractVersion"))
        if version.split(".", maxsplit=1)[0] != CONTRACT_VERSION.split(".")[0]:
            raise JobError(
                f"{path} has contract version {version} and this trainer knows {CONTRACT_VERSION}: "
                "use a trainer image and an operator of the same major version"
            )
        return DriverJob.model_validate(document)
    except (FileNotFoundError, ValueError, AttributeError) as error:
        raise JobError(f"{path} is not a resolved job: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise InfrastructureError(f"{path} cannot be read now: {reason}; look after the volume") from error
