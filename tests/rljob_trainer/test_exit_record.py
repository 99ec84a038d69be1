"""The exit record of exceptions that are not RLJobErrors: outage, full volume or bug."""

import errno
import os

import pytest

from rljob_trainer.attempt.claim import exit_record
from rljob_trainer.cli.failures import report


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/volume/metrics/a1.jsonl")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EROFS])
def test_a_disk_that_fails_is_no_bug_of_ours(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    record = exit_record(failure(number))
    assert (record.code, record.reason) == (75, "Infrastructure")
    assert f"{os.strerror(number)}: '/volume/metrics/a1.jsonl'; check the volume" in record.message
    assert report(failure(number)) == 75
    assert "bug" not in capsys.readouterr().err


def test_so_it_is_where_it_is_behind_another_error() -> None:
    error = ValueError("no metrics")
    error.__cause__ = failure(errno.EIO)
    assert exit_record(error).code == 75


@pytest.mark.parametrize("error", [failure(errno.EISDIR), failure(errno.EBADF), TimeoutError(), ValueError("wrong")])
def test_what_our_own_mistakes_look_like_stays_a_bug(error: Exception) -> None:
    record = exit_record(error)
    assert (record.code, record.reason) == (70, "Bug")


def test_a_full_disk_is_one_still() -> None:
    assert exit_record(failure(errno.ENOSPC)).code == 79
