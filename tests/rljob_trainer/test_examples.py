"""Every shipped example is run, or checked where this machine cannot run it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from rljob_api import resolve
from rljob_api.validation import load_rljob
from tests.rljob_api.example_files import EXAMPLES, FILES, example_name
from tests.rljob_trainer.run_support import exit_record, machine, steps, trained

QUEUED = EXAMPLES / "kueue/rljob.yaml"
"""The same job as reverse-text.yaml."""
LOCAL = [path for path in FILES if path != QUEUED and load_rljob(path, []).spec.model.from_scratch is not None]
"""A model from scratch and synthetic data: nothing to download, nothing that needs a GPU."""
QUICK = [path for path in LOCAL if path.parent == EXAMPLES]


def fewer(urls: Sequence[str], rows: int) -> str:
    return json.dumps([re.sub(r"\brows=\d+", f"rows={rows}", url) for url in urls])


def test_there_is_an_example_that_runs_here():
    assert LOCAL


@pytest.mark.parametrize("path", FILES, ids=example_name)
def test_each_example_is_a_valid_job(path: Path):
    assert resolve(load_rljob(path, []).spec).total_steps > 0


@pytest.mark.parametrize(
    ("path", "engine"),
    [
        pytest.param(path, engine, marks=() if path in QUICK and engine == "vllm" else pytest.mark.slow)
        for path in LOCAL
        for engine in ("hf", "vllm")
    ],
    ids=lambda value: example_name(value) if isinstance(value, Path) else value,
)
def test_each_local_example_trains_two_steps(path: Path, engine: str, tmp_path: Path):
    """As it stands, but for what takes minutes on one thread. Engine hf trains in test_run_resume.py, too."""
    run = tmp_path / "run"
    data = load_rljob(path, []).spec.data
    short = ["training.steps=2", "sft.steps=2", f"rollout.engine={engine}"]
    short += ["data.promptsPerStep=4"] if data.prompts_per_step == 128 else []
    short += [f"data.train={fewer(data.train, 200)}", f"data.validation={fewer(data.validation, 16)}"]
    with machine() as place:
        ended = place.rljob("run", path, "--dir", run, *(part for each in short for part in ("--set", each)))
    assert ended.code == 0, ended.out
    assert exit_record(run)["code"] == 0
    assert steps(run) == [1, 2, 3, 4]
    for line in trained(run)[2:]:
        assert 0 <= line["actor/grad_norm"] < 100
        assert line["actor/grad_norm"] > 0 or line["reward/std"] == 0, "two supervised steps may earn nothing at all"
        assert line["sync/probe_mean"] < 1e-3, "the engine computes what the trainer computes"
        assert line["rollout/log_prob_diff_mean"] < 1e-3
