"""The file that a driver gets its job by."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rljob_api.contract import DriverJob
from rljob_trainer.controller.job import read_job, write_job
from rljob_trainer.errors import InfrastructureError, JobError
from tests.rljob_trainer.checkpoint_support import job_spec


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "control" / "job.json"
    write_job(DriverJob(name="job", uid="u1", base_dir="/", spec=job_spec()), path)
    return path


def test_a_job_is_read_as_it_was_written(file: Path) -> None:
    assert read_job(file) == DriverJob(name="job", uid="u1", base_dir="/", spec=job_spec())


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"contractVersion": "1.0"}'])
def test_a_file_that_is_no_job_is_wrong_for_good(file: Path, text: str | None) -> None:
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(JobError, match="job.json"):
        read_job(file)


def test_a_volume_that_does_not_answer_says_nothing_of_the_job(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path, *_: Any) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "read_text", stale)
    with pytest.raises(InfrastructureError, match=r"job\.json cannot be read now: Stale file handle; look after"):
        read_job(file)
