"""The probe catches what a weight sync can get wrong; engine hf, and the arithmetic. vLLM: test_rollout_vllm.py."""

import numpy as np
import pytest

from rljob_trainer.engines.hf.engine import HfEngine
from rljob_trainer.errors import InfrastructureError
from rljob_trainer.old_types import Sample
from rljob_trainer.weights.probe import WeightSyncError, compare, probe_prompts
from tests.rljob_trainer.rollout_support import (
    check_by_probe,
    make_policy,
    settings,
    skipped,
    stale_bucket,
    swapped_shard,
    sync,
    write_model_dir,
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model_dir(tmp_path_factory.mktemp("probe"))


@pytest.fixture(scope="module")
def old(model_dir):
    return make_policy(model_dir, 0)


@pytest.fixture(scope="module")
def new(model_dir):
    return make_policy(model_dir, 1)


@pytest.fixture
def engine(model_dir, old):
    engine = HfEngine(settings("hf", model_dir))
    sync(engine, old, 0)
    check_by_probe(engine, old, 0)
    return engine


def test_a_good_sync_passes(engine, new):
    sync(engine, new, 1)
    assert check_by_probe(engine, new, 1).max < 1e-4


def test_any_one_skipped_parameter_fails(engine, old, new):
    names = [name for name, _ in new.named_parameters()]
    assert len(names) == 27
    for version, name in enumerate(names, start=1):
        sync(engine, new, version, skipped(old, name))
        with pytest.raises(WeightSyncError):
            check_by_probe(engine, new, version)


def test_a_parameter_that_never_arrives_is_named_before_any_probe(engine, new):
    with pytest.raises(InfrastructureError, match=r"version 1 lack model\.layers\.1\.mlp\.up_proj\.weight$"):
        sync(engine, new, 1, lambda tensors: ((n, t) for n, t in tensors if n != "model.layers.1.mlp.up_proj.weight"))


@pytest.mark.parametrize(
    "name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"]
)
def test_a_swapped_shard_fails(engine, new, name):
    sync(engine, new, 1, swapped_shard(name))
    with pytest.raises(WeightSyncError):
        check_by_probe(engine, new, 1)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_stale_bucket_fails(engine, old, new, index):
    sync(engine, new, 1, stale_bucket(old, index))
    with pytest.raises(WeightSyncError):
        check_by_probe(engine, new, 1)


def test_prompts_are_fixed():
    first, again = probe_prompts(50, 96), probe_prompts(50, 96)
    assert [ids.tolist() for ids in first] == [ids.tolist() for ids in again]
    assert len({tuple(ids.tolist()) for ids in first}) == 4
    assert all(ids.min() >= 0 and ids.max() < 50 for ids in first)
    assert all(len(ids) == 96 for ids in first)


def sample(log_probs):
    return Sample("p", 0, np.zeros(len(log_probs), np.int32), np.array(log_probs, np.float32), "length")


def test_compare_says_version_mean_max_and_tolerance():
    samples, ours = [sample([-1.0, -2.0]), sample([-3.0])], [np.array([-1.0, -2.5]), np.array([-2.0])]
    result = compare(samples, ours, version=7, tolerance=0.5)
    assert (result.mean, result.max) == (0.5, 1.0)
    with pytest.raises(WeightSyncError) as error:
        compare(samples, ours, version=7, tolerance=0.4)
    assert str(error.value) == (
        "weights of version 7 did not arrive intact: log-probabilities of engine and trainer differ by 0.5 nats "
        "on average (largest 1, tolerance 0.4)"
    )


def test_a_difference_that_is_not_a_number_fails():
    with pytest.raises(WeightSyncError, match="nan"):
        compare([sample([np.nan])], [np.array([-1.0])], version=1, tolerance=1e9)


def test_samples_without_tokens_prove_nothing():
    with pytest.raises(WeightSyncError, match="no tokens"):
        compare([sample([])], [np.array([])], version=1, tolerance=1.0)
