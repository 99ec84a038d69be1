"""One rank alone computes in bfloat16 what FSDP computes there, bit for bit."""

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from rljob_trainer.rank import sharding
from rljob_trainer.rank.casting import CastWeights
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    bundle_of,
    parameters,
    plans_of,
    random_advantages,
    random_trajectories,
    record_gradients,
    write_model,
)

TRAJECTORIES = random_trajectories(12)
ADVANTAGES = random_advantages(TRAJECTORIES)


def train(worker, folder):
    """Two updates of several passes. Returns log-probabilities, the gradients of each update, and the weights."""
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    gradients = record_gradients(worker)
    for _ in range(2):
        worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
        worker.update([ADVANTAGES[index] for index in plans[0].samples], 1e-3, 0.1, MARK)
    return np.concatenate(worker.log_probs(TRAJECTORIES)), gradients, parameters(worker)


def shard_instead(policy, layers, dtype):
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in (*layers, policy):
        fully_shard(module, mp_policy=precision)


@pytest.mark.parametrize("recompute", ["none", "layer"])
@pytest.mark.parametrize("name", ["llama", "tied"])
def test_one_rank_computes_what_fsdp_does(tmp_path, monkeypatch, name, recompute):
    folder = write_model(tmp_path, name)
    spec = make_spec(model={"path": "model", "dtype": "bfloat16"}, actor={"recompute": recompute})
    log_probs, gradients, trained = alone(spec, train, folder)
    monkeypatch.setattr(sharding, "CastWeights", shard_instead)
    expected = alone(spec, train, folder)
    assert len(gradients) == 2
    for found, other in zip([*gradients, trained], [*expected[1], expected[2]], strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=0)
    np.testing.assert_array_equal(log_probs, expected[0])


def test_between_passes_the_modules_hold_the_weights_and_the_copies_no_memory(tmp_path, monkeypatch):
    made = []

    class Kept(CastWeights):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    def task(worker, folder):
        train(worker, folder)
        assert {each.dtype for each in worker.policy.network.parameters()} == {torch.float32}
        assert len(made) == 2  # the policy, and the reference, whose weights are in bfloat16
        copies = [copy for each in made for copy in each._copies.values()]
        assert {copy.cast.untyped_storage().size() for copy in copies} == {0}

    monkeypatch.setattr(sharding, "CastWeights", Kept)
    alone(make_spec(model={"path": "model", "dtype": "bfloat16"}), task, write_model(tmp_path))
