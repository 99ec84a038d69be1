"""An advantage and a loss of the user's own: the documented example trains, and mistakes are reported early."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_trainer.advantage import AdvantageBatch
from rljob_trainer.cli.validate import validate
from rljob_trainer.errors import JobError
from rljob_trainer.losses.policy import PolicyBatch
from rljob_trainer.own.advantage import advantage_of
from rljob_trainer.own.check import own_function_errors
from rljob_trainer.own.load import with_own_functions
from rljob_trainer.own.loss import loss_of
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    bundle_of,
    plans_of,
    random_advantages,
    random_trajectories,
    record_gradients,
    write_model,
)
from tests.rljob_trainer.run_support import finish, machine, trained, write_job

PAGE = (Path(__file__).parents[2] / "docs/algorithms.md").read_text()
EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
TRAJECTORIES = random_trajectories(6)
BATCH = AdvantageBatch(np.array([1, 0, 2], np.float32), np.array([0, 0, 1]), np.array([2, 1, 1]))


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(EXAMPLE)
    return tmp_path


def own(folder: Path, **algorithm: Any) -> Any:
    return with_own_functions(make_spec(algorithm=algorithm, actor={"epochs": 2}), folder)


def gradients(worker: Any, model: str) -> Any:
    plans, totals = plans_of(TRAJECTORIES, 1, 10_000)
    worker.load(model)
    worker.begin_stage("rl")
    worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
    found = record_gradients(worker)
    advantages = random_advantages(TRAJECTORIES)
    sums = worker.update([advantages[index] for index in plans[0].samples], 1e-2, 0.0, MARK).sums
    return found, sums.clipped


def test_the_documented_loss_updates_the_policy_as_the_built_in_one_with_the_same_formula(example: Path):
    model = write_model(example / "model")
    arguments = {"lossFrom": {"path": "mine.py", "arguments": {"bound": 1.05}}}
    (ours, clipped), (theirs, also) = (
        alone(spec, gradients, model)
        for spec in (own(example, **arguments), own(example, loss="cispo", clipRatioHigh=0.05))
    )
    assert all(torch.equal(ours[step][name], theirs[step][name]) for step in range(2) for name in theirs[step])
    assert clipped == also > 0


def test_the_documented_advantage_is_the_distance_from_the_mean(example: Path):
    (example / "advantages.py").write_text("from mine import compute_advantage as mine  # a neighbour\n")
    for entry in ({"module": "mine"}, {"path": "advantages.py", "entry": "mine"}):
        assert advantage_of(own(example, advantageFrom=entry).algorithm)(BATCH).tolist() == [0.0, 0.0, -1.0, 1.0]


WRONG = {
    "def f(batch): return batch.rewards": "returned the shape \\(4,\\) for 8 tokens",
    "def f(batch): return 'x'": "returned str: return an array",
    "def f(batch): return batch.spread(batch.rewards / (batch.rewards - 0.5))": "not finite",
    "def f(batch): return 1 / 0": "raised ZeroDivisionError: division by zero \\(line 1 of .*mine.py\\)",
    "def f(): return 1": "f\\(\\) cannot be called as f\\(batch",
    "def g(batch): return 1": "no function 'f'; it defines g",
    "import absent_module": "No module named 'absent_module'",
    "import os; os._exit(3)": "ended its process with code 3",
    "import os; os._exit(0)": "ended its process with code 0: no output",
    "import atexit; atexit.register(print, 'bye')": "no function 'f'",
}


@pytest.mark.parametrize(("code", "message"), WRONG.items())
def test_a_wrong_advantage_is_reported_before_anything_starts(tmp_path: Path, code: str, message: str):
    (tmp_path / "mine.py").write_text(code)
    spec = make_spec(algorithm={"advantageFrom": {"path": "mine.py", "entry": "f"}})
    (error,) = own_function_errors(spec, tmp_path)
    assert error.field is not None
    assert error.field.startswith("spec.algorithm.advantageFrom")
    assert re.search(message, error.message), error.message


WRONG_LOSSES = {
    "def f(batch): return batch.log_probs.sum()": "returned a tensor \\(\\) for 8 tokens",
    "def f(batch): return -batch.log_probs.detach() * batch.advantages": "has no gradient",
    "def f(batch): return (batch.log_ratio() / 0) * batch.advantages": "not finite",
    "def f(batch, bound): return batch.log_probs": "cannot be called",
}


@pytest.mark.parametrize(("code", "message"), WRONG_LOSSES.items())
def test_a_wrong_loss_is_found_by_its_trial(tmp_path: Path, code: str, message: str):
    from rljob_trainer.own.trial import try_loss

    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(JobError, match=message):
        try_loss(own(tmp_path, lossFrom={"path": "mine.py", "entry": "f"}).algorithm)


def test_a_bound_of_what_is_clipped_needs_a_loss_that_says_it(tmp_path: Path):
    (tmp_path / "mine.py").write_text("def compute_loss(batch): return -batch.log_probs * batch.advantages")
    settings = own(tmp_path, lossFrom={"path": "mine.py"}, earlyStop={"clipFraction": 0.1}).algorithm
    batch = PolicyBatch(torch.zeros(2, requires_grad=True), torch.ones(2))
    with pytest.raises(JobError, match="does not say what it clips"):
        loss_of(settings)(batch, settings)


def test_validate_calls_them_and_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text("def compute_advantage(batch): return batch.rewards")
    job = write_job(tmp_path, algorithm={"advantageFrom": {"path": "mine.py"}, "lossFrom": {"path": "absent.py"}})
    with pytest.raises(BaseException, match="64"):
        validate([job])
    out = capsys.readouterr().out
    assert "spec.algorithm.advantageFrom: compute_advantage returned the shape (4,)" in out
    assert "absent.py" not in out  # it may exist in the cluster


@pytest.mark.slow
def test_a_run_with_the_documented_functions_is_that_with_built_in_ones(example: Path):
    """With groups of all the step's episodes, the example's advantage is dr_grpo's."""
    mine = {"advantageFrom": {"path": "mine.py"}, "lossFrom": {"path": "mine.py", "arguments": {"bound": 5.0}}}
    shared = {"data": {"promptsPerStep": 1}, "rollout": {"deterministic": True, "samplesPerPrompt": 8}}
    found = []
    with machine() as place:
        for name, algorithm in (("own", mine), ("theirs", {"advantage": "dr_grpo", "loss": "cispo"})):
            job = write_job(example, name, algorithm=algorithm, **shared)
            ended = finish(place.start_run(job, "--dir", example / "runs" / name))
            assert ended.code == 0, ended.out
            found.append([(line["actor/loss"], line["reward/mean"]) for line in trained(example / "runs" / name)])
    assert found[0] == [pytest.approx(each, rel=1e-4, abs=1e-6) for each in found[1]]
    assert len(found[0]) == 2
