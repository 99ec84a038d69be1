"""A rank on a GPU computes what a rank on a CPU does, with its shards there or in host memory."""

import numpy as np
import pytest
import torch

from rljob_trainer.errors import JobError
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    answers_to_prompts,
    bundle_of,
    parameters,
    plans_of,
    random_advantages,
    random_trajectories,
    write_model,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TRAJECTORIES = [*random_trajectories(8), *answers_to_prompts(prompts=3, samples=4)]
"""The last twelve share prompts, which a CPU's pass computes once and a GPU's does not."""
ADVANTAGES = random_advantages(TRAJECTORIES)
MODEL = {"path": "model", "dtype": "float32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "tied")


def train(worker, folder, directory):
    """Two steps with a checkpoint and its restoration between them. Returns log-probabilities and parameters."""
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    for step in range(2):
        worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
        worker.update([ADVANTAGES[index] for index in plans[0].samples], 1e-3, 0.1, MARK)
        if step == 0:
            worker.begin_save(directory)
            worker.finish_save()
            worker.load(folder)
            worker.begin_stage("rl")
            worker.restore(directory)
    log_probs = np.concatenate(worker.log_probs(TRAJECTORIES))
    return log_probs, parameters(worker)


@pytest.mark.parametrize("offload", ["none", "parameters", "optimizer", "all"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_training_agrees_with_a_cpu(folder, tmp_path, offload, dtype, tolerance):
    expected, _ = alone(make_spec(model=MODEL), train, folder, str(tmp_path / "cpu"))
    spec = make_spec(model=MODEL | {"dtype": dtype}, actor={"fsdp": {"offload": offload}})
    log_probs, trained = alone(spec, train, folder, str(tmp_path / "gpu"), device="cuda")
    assert np.abs(log_probs - expected).mean() < tolerance
    assert {parameter.dtype for parameter in trained.values()} == {torch.float32}


def test_a_micro_batch_that_does_not_fit_names_the_field(folder):
    with pytest.raises(JobError, match=r"^spec\.actor\.tokensPerMicroBatch: the GPU ran out of memory"):
        alone(make_spec(), train_with_little_memory, folder, device="cuda")


def train_with_little_memory(worker, folder):
    sequences = random_trajectories(400, longest=100)
    plans, totals = plans_of(sequences, 1, 100_000)
    worker.load(folder)
    worker.begin_stage("sft")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    try:
        worker.supervised_step(plans[0], totals, sequences, 1e-3, MARK)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
