"""The arithmetic of the probe. That it catches what a sync can get wrong: test_engine_conformance.py."""

import numpy as np
import pytest

from rljob_trainer.engines.engine import Completion
from rljob_trainer.weights.probe import WeightSyncError, compare, probe_prompts


def test_prompts_are_fixed():
    first, again = probe_prompts(50, 96), probe_prompts(50, 96)
    assert [ids.tolist() for ids in first] == [ids.tolist() for ids in again]
    assert len({tuple(ids.tolist()) for ids in first}) == 4
    assert all(ids.min() >= 0 and ids.max() < 50 for ids in first)
    assert all(len(ids) == 96 for ids in first)


def sample(log_probs):
    ids = np.zeros(len(log_probs), np.int32)
    return Completion("p", 0, ids, np.array(log_probs, np.float32), ids, "length")


def test_compare_reports_version_mean_max_and_tolerance():
    samples, ours = [sample([-1.0, -2.0]), sample([-3.0])], [np.array([-1.0, -2.5]), np.array([-2.0])]
    result = compare(samples, ours, version=7, tolerance=0.5)
    assert (result.mean, result.max) == (0.5, 1.0)
    with pytest.raises(WeightSyncError, match=r"version 7 .* 0.5 nats .*largest 1, tolerance 0.4"):
        compare(samples, ours, version=7, tolerance=0.4)


def test_a_difference_that_is_not_a_number_fails():
    with pytest.raises(WeightSyncError, match="nan"):
        compare([sample([np.nan])], [np.array([-1.0])], version=1, tolerance=1e9)


def test_samples_without_tokens_prove_nothing():
    with pytest.raises(WeightSyncError, match="no tokens"):
        compare([sample([])], [np.array([])], version=1, tolerance=1.0)
