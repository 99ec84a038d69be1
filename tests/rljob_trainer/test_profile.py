"""Traces of one process: which parts are in them, and that they are what Perfetto reads."""

import gzip
import json

import pytest
import torch

from rljob_trainer.errors import JobError
from rljob_trainer.workers import profile as module
from rljob_trainer.workers.profile import FOLDER, VARIABLE, Profile, profile_folder
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import alone, write_model
from tests.rljob_trainer.test_usage import step


def test_the_trace_has_the_parts_after_the_first_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PARTS", {"rollout": (2, 3)})
    monkeypatch.setenv(FOLDER, str(tmp_path / "profile"))
    profile = Profile("rollout")
    for index in range(7):
        with profile.part():
            torch.zeros(index + 1).cos()
    (written,) = (tmp_path / "profile").iterdir()
    assert written.name.startswith("rollout-")
    events = json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::cos" and event["ph"] == "X" for event in events) == 3


def test_a_supervised_step_is_an_update(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PARTS", {"update": (0, 1)})
    monkeypatch.setenv(FOLDER, str(tmp_path / "profile"))
    alone(make_spec(), step, write_model(tmp_path / "model"))
    (written,) = (tmp_path / "profile").iterdir()
    assert written.name.startswith("update-")


def test_without_the_variable_nothing_is_profiled(tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    profile = Profile("update")
    for _ in range(5):
        with profile.part():
            pass
    assert profile._profiler is None


def test_the_folder_of_a_run(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert profile_folder(tmp_path) == {}
    monkeypatch.setenv(VARIABLE, "torch")
    assert profile_folder(tmp_path) == {FOLDER: str(tmp_path / "profile")}
    monkeypatch.setenv(VARIABLE, "nsys")
    with pytest.raises(JobError, match="RLJOB_PROFILE is nsys: set it to torch"):
        profile_folder(tmp_path)
