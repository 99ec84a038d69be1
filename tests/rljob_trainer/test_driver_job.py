"""The file that a driver gets its job by."""

import json
import re
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from structlog.testing import capture_logs

from rljob_api.contract import CONTRACT_VERSION, DriverJob
from rljob_trainer.attempt.job_file import job_of_generation, read_job, write_job
from rljob_trainer.errors import InfrastructureError, JobError
from tests.rljob_trainer.checkpoint_support import job_spec


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "control" / "job.json"
    write_job(DriverJob(name="job", uid="u1", base_dir="/", spec=job_spec()), path)
    return path


def test_a_job_is_read_as_it_was_written(file: Path) -> None:
    assert read_job(file) == DriverJob(name="job", uid="u1", base_dir="/", spec=job_spec())


def of_generation(number: int) -> DriverJob:
    return DriverJob(name="job", uid="u1", generation=number, base_dir="/", spec=job_spec())


def test_a_driver_waits_until_its_file_has_the_generation_that_it_was_started_for(file: Path) -> None:
    """A kubelet brings a changed ConfigMap to a living pod about a minute later."""
    write_job(of_generation(3), file)
    assert job_of_generation(file, 3) == of_generation(3)
    later = Timer(0.5, write_job, (of_generation(5), file))
    later.start()
    assert job_of_generation(file, 4) == of_generation(5)
    with pytest.raises(InfrastructureError, match=r"job\.json still has generation 5 of the spec after 1 s, not 6"):
        job_of_generation(file, 6, seconds=1.0)


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"contractVersion": "1.0"}'])
def test_a_file_that_is_no_job_is_wrong_for_good(file: Path, text: str | None) -> None:
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(JobError, match=r"job\.json"):
        read_job(file)


def test_a_volume_that_does_not_answer_says_nothing_of_the_job(file: Path) -> None:
    file.unlink()
    file.mkdir()
    with pytest.raises(InfrastructureError, match=r"job\.json cannot be read: Is a directory; check"):
        read_job(file)


def rewrite(file: Path, **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text()) | changes
    file.write_text(json.dumps(document))
    return document


def test_what_only_a_newer_minor_version_knows_is_left_out_and_said(file: Path) -> None:
    document = rewrite(file, contractVersion="1.99", fieldOfTomorrow=1)
    document["spec"]["fieldOfTomorrow"] = document["spec"]["checkpoint"]["fieldOfTomorrow"] = {"a": 1}
    file.write_text(json.dumps(document))
    with capture_logs() as logs:
        assert read_job(file).spec == job_spec()
    assert [(line["event"], line["job"]) for line in logs] == [("contract_is_newer", "1.99")]


def test_a_field_that_our_own_version_does_not_have_is_wrong(file: Path) -> None:
    rewrite(file, fieldOfTomorrow=1)
    with pytest.raises(JobError, match="fieldOfTomorrow"):
        read_job(file)


@pytest.mark.parametrize("version", ["2.0", "0.9", "2", None])
def test_another_major_version_is_named(file: Path, version: str | None) -> None:
    rewrite(file, contractVersion=version)
    known = re.escape(CONTRACT_VERSION)
    with pytest.raises(JobError, match=f"contract version {version}, but this trainer supports {known}"):
        read_job(file)
