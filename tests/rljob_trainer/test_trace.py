"""RLJOB_TRACE: what workers did, and when."""

import json
import os
import time

import pytest

from rljob_trainer.workers.trace import VARIABLE, traced


def test_each_call_is_one_line_with_its_process_and_its_time(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    before = time.time()
    with traced("update"):
        pass
    with pytest.raises(ValueError, match="no batch"), traced("generate"):
        raise ValueError("no batch")
    calls = [json.loads(line) for line in (tmp_path / f"{os.getpid()}.jsonl").read_text().splitlines()]
    assert [(call["pid"], call["call"]) for call in calls] == [(os.getpid(), "update"), (os.getpid(), "generate")]
    times = [calls[0]["start"], calls[0]["end"], calls[1]["start"], calls[1]["end"]]
    assert before <= times[0]
    assert times == sorted(times)


def test_nothing_is_written_unless_somebody_asks(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with traced("update"):
        pass
    assert list(tmp_path.iterdir()) == []
