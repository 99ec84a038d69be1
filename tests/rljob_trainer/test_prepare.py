"""Checks before anything starts: mistakes in the user's files, and whether anything is left to do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.errors import DataError, JobError, RewardError, RLJobError
from rljob_trainer.local.prepare import LocalRun, adopt, nothing_left, prepare
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import begin_attempt, job_spec
from tests.rljob_trainer.run_support import write_job


def local_run(folder: Path, epochs: int | None = None) -> LocalRun:
    spec = job_spec()
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"steps": 100, "epochs": epochs})})
    return LocalRun("job", spec, folder, Volume(folder), gpus=0, environment={}, notes=())


def test_a_run_at_its_last_step_has_nothing_left(tmp_path: Path):
    run = local_run(tmp_path)
    assert nothing_left(run) is None
    first = begin_attempt(run.volume, 1)
    first.save(90)
    assert nothing_left(run) is None
    first.save(110)
    assert str(nothing_left(run)).startswith(f"nothing left to do: the run in {tmp_path} is at step 110 of 100. Raise")


def test_a_run_without_its_identity_is_not_taken_for_a_new_one(tmp_path: Path):
    run = local_run(tmp_path)
    uid = adopt(run)
    begin_attempt(run.volume, 1).save(40)
    assert adopt(run) == uid
    run.volume.job.unlink()
    with pytest.raises(DataError, match=r"holds a run without job.json"):
        adopt(run)
    shutil.rmtree(run.volume.attempts)
    with pytest.raises(DataError, match=r"holds a run without job.json"):
        adopt(run)
    assert not run.volume.job.exists()


@pytest.mark.parametrize("epochs", [None, 3])
@pytest.mark.parametrize("content", [None, b"", b'{"step": 1'])
def test_a_damaged_checkpoint_does_not_tell(tmp_path: Path, epochs: int | None, content: bytes | None):
    run = local_run(tmp_path, epochs)
    first = begin_attempt(run.volume, 1)
    saved = [first.save(step) for step in ((90, 100) if epochs is None else (90,))]
    state = saved[-1].path / "trainer.json"
    state.unlink() if content is None else state.write_bytes(content)
    assert nothing_left(run) is None, "the driver goes back as far as it has to"


# ---- what this machine does otherwise


@pytest.mark.parametrize(
    ("visible", "override", "warned"),
    [
        ("", "cluster.gpusPerNode=1", "1"),
        ("", "cluster=", "8"),  # removed, and the default takes GPUs
        ("", "cluster.gpusPerNode=0", None),
        ("0", "cluster.gpusPerNode=1", None),
        ("0", "cluster.gpusPerNode=0", None),  # a GPU that is there is used
    ],
)
def test_a_job_that_asks_for_absent_gpus_gets_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str, override: str, warned: str | None
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    notes = prepare(write_job(tmp_path, cluster={"nodes": 2}), None, None, [override]).notes
    warnings = [note for note in notes if note.startswith("warning: ")]
    if warned is None:
        assert not warnings
    else:
        assert notes[0] == warnings[0], "warnings come first"
        assert f"cluster.gpusPerNode: {warned}" in warnings[0]


def test_cluster_gpus_per_node_decides_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    file = write_job(tmp_path)
    runs = [prepare(file, None, None, [f"cluster.gpusPerNode={gpus}"]) for gpus in (0, 1, 4)]
    assert runs[0].spec == runs[1].spec == runs[2].spec
    assert [run.gpus for run in runs] == [1, 1, 1]


def test_variables_of_rewards_are_looked_for_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = {
        "name": "judge", "path": "org/judge", "url": "http://127.0.0.1:1", "kind": "classifier",
        "key": {"name": "secret", "key": "k"},
    }  # fmt: skip
    function = {"builtin": "similarity", "env": ["SOME_KEY"]}
    file = write_job(tmp_path, rewards={"functions": [function], "models": [model]})
    with pytest.raises(JobError, match="RLJOB_REWARD_KEY_JUDGE") as missing:
        prepare(file, None, None, [])
    assert missing.value.field == "spec.rewards.models[0].key"
    monkeypatch.setenv("RLJOB_REWARD_KEY_JUDGE", "sesame")
    assert any("functions[0].env" in note and "SOME_KEY" in note for note in prepare(file, None, None, []).notes)
    monkeypatch.setenv("SOME_KEY", "")
    assert not any("SOME_KEY" in note for note in prepare(file, None, None, []).notes)


# ---- files of data


def refused(folder: Path, **blocks: Any) -> RLJobError:
    with pytest.raises((DataError, RewardError)) as caught:
        prepare(write_job(folder, **blocks), None, None, [])
    assert len(str(caught.value)) < 400
    return caught.value


ROW: dict[str, Any] = {
    "data_source": "test",
    "prompt": [{"role": "user", "content": "abc"}],
    "reward_model": {"style": "rule", "ground_truth": "cba"},
}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"a,b\n", "a.csv has the unknown extension '.csv'"),
        (".", None, "cannot be read"),
        ("a.jsonl", b"[1, 2]\n", 'a.jsonl: line 1 is list, not an object like {"prompt": ...}; correct the file'),
        ("a.jsonl", b'{"prompt": 1, "reward_model": 2}\n', "no column 'data_source'; it has prompt, reward_model: add"),
        ("~nobody/a.jsonl", None, "does not exist"),
        ("synthetic://reverse-txt", None, "unknown task 'reverse-txt', did you mean 'reverse-text'?"),
    ],
)
def test_data_that_cannot_be_used_is_named(tmp_path: Path, name: str, content: bytes | None, words: str):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    for part in ("train", "validation"):
        error = refused(tmp_path, data={part: [name]})
        assert error.field == f"spec.data.{part}[0]"
        assert words in error.message


def test_a_folder_for_temporary_files_that_is_too_long_for_sockets_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", f"/tmp/{'x' * 40}")
    with pytest.raises(JobError, match=r"TMPDIR=/tmp/x+ is too long .* at most \d\d characters, such as /tmp"):
        prepare(write_job(tmp_path), None, None, [])


def test_supervised_data_needs_a_target(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW))
    error = refused(tmp_path, sft={"data": ["a.jsonl"], "steps": 1})
    assert error.field == "spec.sft.data[0]"
    assert "needs the columns prompt and response, or messages; it has data_source, prompt" in error.message
    error = refused(tmp_path, data={"train": ["a.jsonl"]}, sft={"steps": 1})
    assert error.field == "spec.data.train[0]", "which serves both"


def test_rows_behind_the_first_are_left_to_the_run(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW) + "\nno JSON\n")
    prepare(write_job(tmp_path, data={"train": ["a.jsonl"]}), None, None, [])


# ---- reward code


@pytest.mark.parametrize(
    ("code", "part", "words"),
    [
        (b"# -*- coding: nope -*-\n", "path", "mine.py: unknown encoding: nope; correct it"),
        (b"x = '\xe9'\n", "path", "mine.py: line 1: (unicode error) 'utf-8' codec can't decode byte 0xe9"),
        (b"\ndef compute_score(*_:\n", "path", "correct it"),
        (b"x = " + b"-" * 200_000 + b"1\n", "path", "mine.py: nested too deeply for Python; write it flatter"),
        (b"def other(): compute_score = 1", "function", "no function 'compute_score'; it defines other: define it, or"),
        (b"class Own:\n  def compute_score(self): 1", "function", "no function 'compute_score'; it defines none"),
    ],
)
def test_reward_code_that_cannot_run_is_named(tmp_path: Path, code: bytes, part: str, words: str):
    (tmp_path / "mine.py").write_bytes(code)
    error = refused(tmp_path, rewards={"functions": [{"name": "own", "path": "mine.py"}]})
    assert error.field == f"spec.rewards.functions[0].{part}"
    assert words in error.message
    assert "rljob_trainer" not in error.message, "our own code is not to blame"


@pytest.mark.parametrize(("path", "words"), [(".", "is a folder; name a Python file"), ("none.py", "does not exist")])
def test_what_is_no_file_is_no_reward_code(tmp_path: Path, path: str, words: str):
    error = refused(tmp_path, rewards={"functions": [{"name": "own", "path": path}]})
    assert (error.field, words in error.message) == ("spec.rewards.functions[0].path", True)


@pytest.mark.parametrize(
    "code",
    [
        b"\xef\xbb\xbfdef compute_score(*_): 1",
        "# -*- coding: latin-1 -*-\ndef compute_score(*_): 'é'".encode("latin-1"),
        b"async def compute_score(*_): 1",  # for the reward process to refuse, with its own words
        b"if True:\n  class compute_score: ...",
        b"import own.compute_score as compute_score",
        b"from own import one, compute_score",
        b"from own import *",
        b"compute_score = other = lambda *_: 1",
        b"def load():\n  global compute_score\n  compute_score = 1",
        b"import sys\nsetattr(sys.modules[__name__], 'compute_score', 1)",
        b"exec('def compute' + '_score(*_): 1')",
    ],
)
def test_reward_code_that_may_define_its_function_is_left_to_the_run(tmp_path: Path, code: bytes):
    (tmp_path / "mine.py").write_bytes(code)
    functions = [{"name": "own", "path": "mine.py"}, {"name": "module", "module": "nowhere"}]
    prepare(write_job(tmp_path, rewards={"functions": functions}), None, None, [])


def test_a_home_folder_holds_reward_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mine.py").write_text("def compute_score(*_): 1")
    functions = [{"name": "own", "path": "~/mine.py"}]
    prepare(write_job(tmp_path, rewards={"functions": functions}), None, None, [])
