"""What a person got wrong, or what broke: a short error that names field and remedy, an exit code, nothing left."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rljob_trainer.volume import Volume
from tests.rljob_trainer.run_support import RLJOB, Ended, Machine, finish, machine, write_job


@pytest.fixture(scope="module")
def place() -> Iterator[Machine]:
    with machine() as made:
        yield made


def assert_short(ended: Ended, *words: str) -> None:
    """One line of error, no traceback anywhere."""
    assert "Traceback" not in ended.out, ended.out
    errors = [line for line in ended.out.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.out
    assert len(errors[0]) < 400, errors
    for word in words:
        assert word in errors[0], errors[0]


# ------------------------------------------------------------------ before anything starts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "model.dtype=float8"], ["spec.model.dtype", "float8"]),
        (["--set", "training.stepz=3"], ["spec.training.stepz", "steps"]),
        (["--ranks", "3"], ["--ranks 3", "2 are present", "lower it"]),
    ],
)
def test_what_the_file_shows_is_refused_at_once(place: Machine, tmp_path: Path, arguments: list[str], words: list[str]):
    job, run = write_job(tmp_path), tmp_path / "run"
    ended = place.rljob("run", job, "--dir", run, *arguments, CUDA_VISIBLE_DEVICES="0,1")
    assert ended.code == 64
    assert_short(ended, *words)
    assert not run.exists()


def test_a_folder_without_a_name_is_refused(place: Machine, tmp_path: Path):
    """As of a shell's variable that is not set: the current folder is not meant."""
    ended = place.rljob("run", write_job(tmp_path), "--dir", "")
    assert ended.code == 2
    assert "Invalid value for '--dir': is empty; give a folder" in ended.out


def test_a_folder_of_another_job_is_refused(place: Machine, tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/job.json").write_text('{"jobUid": "u", "name": "other", "layoutVersion": 1}')
    ended = place.rljob("run", write_job(tmp_path), "--dir", tmp_path / "run")
    assert ended.code == 65
    assert_short(ended, "holds the run other", "--dir")


def run_on_tmpfs(place: Machine, folder: Path, options: str, before: str, *arguments: object) -> Ended:
    """In mount namespaces of its own, where FOLDER/run is a small file system that vanishes with them."""
    run = folder / "run"
    run.mkdir()
    rljob = [*RLJOB, "run", write_job(folder), "--dir", run]
    script = f'mount -t tmpfs -o {options} tmpfs "$1" && cd "$1" && {before} && cd / && shift && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", run, *rljob]
    return finish(place.start([*command, *arguments]))


@pytest.mark.parametrize(
    ("options", "before", "code", "words"),
    [
        ("size=64k", "! dd if=/dev/zero of=fill 2>/dev/null", 79, ["no space left in", "--dir"]),
        ("ro", "true", 65, ["Read-only", "--dir"]),
    ],
    ids=["full", "read-only"],
)
def test_a_folder_that_cannot_be_written_is_refused(
    place: Machine, tmp_path: Path, options: str, before: str, code: int, words: list[str]
):
    ended = run_on_tmpfs(place, tmp_path, options, before)
    assert ended.code == code
    assert_short(ended, str(tmp_path / "run"), *words)


@dataclass
class Case:
    """make: writes files beside the job. hidden: packages that are not installed."""

    code: int
    words: list[str]
    spec: dict[str, Any]
    make: Callable[[Path], object] = lambda _: None
    hidden: str = ""


EARLY = {
    "no model": Case(65, ["spec.model.path", "no folder ./none", "correct the path"],
                     {"model": {"fromScratch": None, "path": "./none"}}),
    "reward": Case(66, ["spec.rewards.functions[0].path", "reward.py", "line 2"],
                   {"rewards": {"functions": [{"name": "mine", "path": "reward.py"}]}},
                   lambda folder: (folder / "reward.py").write_text("def compute_score(*_):\n    return 1 +\n")),
    "environment": Case(66, ["spec.environment.entry", "rollout is not async", "write `async def rollout`"],
                        {"environment": {"source": "def rollout(task, policy): 0"}}),
    "server": Case(66, ["spec.environment.mcpServers[0].command[0]", "no-such-server is no program here"],
                   {"environment": {"mcpServers": [{"name": "a", "command": ["no-such-server"]}]}}),
    "logger": Case(64, ["spec.training.loggers[1]", "wandb is not installed", "pip install 'rljob-trainer[wandb]'"],
                   {"training": {"loggers": ["console", "wandb"]}}, hidden="wandb"),
    "engine": Case(64, ["spec.rollout.engine", "vLLM", "set the engine to hf"],
                   {"rollout": {"engine": "vllm"}}, hidden="vllm"),
}  # fmt: skip


@pytest.mark.parametrize("case", EARLY.values(), ids=EARLY)
def test_what_is_missing_is_named_at_once(place: Machine, tmp_path: Path, case: Case):
    run, ended = run_case(place, tmp_path, case)
    assert ended.code == case.code, ended.out
    assert_short(ended, *case.words)
    assert not run.exists()


def run_case(place: Machine, folder: Path, case: Case) -> tuple[Path, Ended]:
    case.make(folder)
    hide = folder / "python/sitecustomize.py"
    hide.parent.mkdir()
    hide.write_text(f"import sys\nfor name in {case.hidden.split()!r}:\n    sys.modules[name] = None\n")
    run = folder / "run"
    return run, place.rljob("run", write_job(folder, **case.spec), "--dir", run, PYTHONPATH=str(hide.parent))


# ------------------------------------------------------------------ in the driver and its workers


ROW = '{"data_source": "", "prompt": [{"role": "user", "content": "2 + 2"}], "reward_model": {"ground_truth": "4"}}'

FAILS_WHEN_RUN = "raise RuntimeError('no such thing')\ndef compute_score(*_): return 1.0\n"

LATE = {
    "data": Case(65, ["spec.data.train[0]", "data.jsonl", "line 2", "column 'data_source' is None"],
                 {"data": {"train": ["data.jsonl"]}},
                 lambda folder: (folder / "data.jsonl").write_text(f'{ROW}\n{{"question": "2 + 2"}}\n')),
    "reward": Case(66, ["spec.rewards.functions[0].path", "reward.py", "no such thing", "line 1", "correct the code"],
                   {"rewards": {"functions": [{"name": "mine", "path": "reward.py"}]}},
                   lambda folder: (folder / "reward.py").write_text(FAILS_WHEN_RUN)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", LATE.values(), ids=LATE)
def test_what_shows_only_later_ends_with_a_short_error(place: Machine, tmp_path: Path, case: Case):
    run, ended = run_case(place, tmp_path, case)
    assert ended.code == case.code, ended.out
    assert_short(ended, *case.words)
    assert not Volume(run).claim(2).exists(), "another attempt would end the same way"


@pytest.mark.slow
def test_gradients_that_are_too_large_end_the_run_with_their_samples_kept(place: Machine, tmp_path: Path):
    """Norms rise and fall: one of them exceeds their mean soon after it is known."""
    guard = {"maxSkips": 0, "spikeFactor": 1.001}
    job = write_job(tmp_path, actor={"miniBatchSize": 1}, training={"steps": 20, "onBadGradient": guard})
    ended = place.rljob("run", job, "--dir", tmp_path / "run")
    assert ended.code == 64, ended.out
    assert_short(ended, "spec.actor.learningRate", "1 in a row", "bad_batches/", "maxSkips")
    (kept,) = (tmp_path / "run/bad_batches").iterdir()
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert len(rows) == 4 * 2
    assert all(len(row["advantages"]) == sum(row["inLoss"]) for row in rows)


@pytest.mark.slow
def test_a_volume_that_is_nearly_full_when_it_starts_is_named(place: Machine, tmp_path: Path):
    ended = run_on_tmpfs(place, tmp_path, "size=16k", "true")
    assert ended.code == 79, ended.out
    assert_short(ended, "no space left", "free space", str(tmp_path / "run"))


@pytest.mark.slow
def test_a_volume_that_fills_up_is_named(place: Machine, tmp_path: Path):
    ended = run_on_tmpfs(place, tmp_path, "size=200k", "true", "--set", "checkpoint.everySteps=1")
    assert ended.code == 79, ended.out
    assert_short(ended, "no space left", "free space", str(tmp_path / "run"))
