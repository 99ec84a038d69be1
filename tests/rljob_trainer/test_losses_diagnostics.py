"""Diagnostics of engine against trainer, by hand and over any split."""

import math

import numpy as np
import pytest

from rljob_trainer.losses.diagnostics import ImportanceSums, importance_sums


def lengths(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_diagnostics_by_hand():
    # Log weights log 2, 0 | -log 2 of two responses, so token weights 2, 1, 1/2 and response weights 2, 1/2.
    #   tokens    (3.5)^2 / (3 (4 + 1 + 1/4)) = 12.25 / 15.75 = 0.777778
    #   responses (2.5)^2 / (2 (4 + 1/4)) = 6.25 / 8.5 = 0.735294
    #   kl        ((2 - 1 - log 2) + 0 + (1/2 - 1 + log 2)) / 3 = 0.5 / 3
    engine = np.array([-2.0, -1.0, -3.0], np.float32)
    trainer = engine + np.array([math.log(2), 0, -math.log(2)], np.float32)
    found = importance_sums(trainer, engine, lengths(2, 1)).finish()
    assert found.mean_difference == pytest.approx(2 * math.log(2) / 3, rel=1e-6)
    assert found.max_difference == pytest.approx(math.log(2), rel=1e-6)
    assert found.kl == pytest.approx(0.5 / 3, rel=1e-6)
    assert found.token_sample_size == pytest.approx(12.25 / 15.75, rel=1e-6)
    assert found.response_sample_size == pytest.approx(6.25 / 8.5, rel=1e-6)


def test_equal_log_probs_are_fully_on_policy():
    log_probs = np.linspace(-9, 0, 6, dtype=np.float32)
    found = importance_sums(log_probs, log_probs, lengths(1, 2, 3)).finish()
    assert (found.mean_difference, found.max_difference, found.kl) == (0, 0, 0)
    assert (found.token_sample_size, found.response_sample_size) == (1, 1)


def test_parts_add_up_to_the_whole_even_an_empty_one():
    rng = np.random.default_rng(0)
    engine = rng.normal(-2, 1, size=10).astype(np.float32)
    trainer = engine + rng.normal(0, 0.3, size=10).astype(np.float32)
    parts = [
        importance_sums(trainer[:3], engine[:3], lengths(1, 2)),
        importance_sums(trainer[:0], engine[:0], lengths()),
        importance_sums(trainer[3:], engine[3:], lengths(4, 3)),
    ]
    whole = importance_sums(trainer, engine, lengths(1, 2, 4, 3)).finish()
    together = sum(parts, start=ImportanceSums()).finish()
    for name in ("mean_difference", "max_difference", "kl", "token_sample_size", "response_sample_size"):
        assert getattr(together, name) == pytest.approx(getattr(whole, name), rel=1e-12), name


def test_the_estimated_divergence_is_the_true_one_in_expectation():
    # Tokens of a three-word vocabulary in exact proportion to the engine's probabilities 1/2, 1/4, 1/4.
    engine = np.log(np.array([0.5, 0.5, 0.25, 0.25], np.float32))
    trainer = np.log(np.array([0.4, 0.4, 0.35, 0.25], np.float32))
    true = 0.5 * math.log(0.5 / 0.4) + 0.25 * math.log(0.25 / 0.35)
    assert importance_sums(trainer, engine, lengths(4)).finish().kl == pytest.approx(true, rel=1e-5)


def test_one_broken_token_leaves_the_effective_size_of_one_sample():
    trainer = np.array([0, 0, 0, -1], np.float32)
    engine = np.array([0, 0, 0, -800], np.float32)
    found = importance_sums(trainer, engine, lengths(1, 1, 1, 1)).finish()
    assert found.max_difference == 799
    assert found.token_sample_size == pytest.approx(1 / 4, rel=1e-6)
    assert math.isfinite(found.kl)
