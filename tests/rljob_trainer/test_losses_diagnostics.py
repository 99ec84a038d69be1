"""Diagnostics of engine against trainer, by hand and over any split."""

import math

import numpy as np
import pytest

from rljob_trainer.losses.diagnostics import ImportanceSums, importance_sums

EACH = np.ones(10, np.bool_)


def test_diagnostics_by_hand():
    # Log weights log 2, 0, -log 2, so weights 2, 1, 1/2 and a size of (3.5)^2 / (3 (4 + 1 + 1/4)) = 12.25 / 15.75.
    engine = np.array([-2.0, -1.0, -3.0], np.float32)
    trainer = engine + np.array([math.log(2), 0, -math.log(2)], np.float32)
    found = importance_sums(trainer, engine, EACH[: len(engine)]).finish()
    assert found.mean_difference == pytest.approx(2 * math.log(2) / 3, rel=1e-6)
    assert found.max_difference == pytest.approx(math.log(2), rel=1e-6)
    assert found.effective_sample_size == pytest.approx(12.25 / 15.75, rel=1e-6)


def test_equal_log_probs_are_fully_on_policy():
    log_probs = np.linspace(-9, 0, 6, dtype=np.float32)
    found = importance_sums(log_probs, log_probs, EACH[:6]).finish()
    assert (found.mean_difference, found.max_difference, found.effective_sample_size) == (0, 0, 1)


def test_parts_add_up_to_the_whole_even_an_empty_one():
    rng = np.random.default_rng(0)
    engine = rng.normal(-2, 1, size=10).astype(np.float32)
    trainer = engine + rng.normal(0, 0.3, size=10).astype(np.float32)
    parts = [
        importance_sums(trainer[part], engine[part], EACH[:10][part]) for part in (slice(3), slice(0), slice(3, None))
    ]
    whole = importance_sums(trainer, engine, EACH[: len(engine)]).finish()
    together = sum(parts, start=ImportanceSums()).finish()
    for name in ("mean_difference", "max_difference", "effective_sample_size"):
        assert getattr(together, name) == pytest.approx(getattr(whole, name), rel=1e-12), name


def test_one_broken_token_leaves_the_effective_size_of_one_sample():
    trainer = np.array([0, 0, 0, -1], np.float32)
    engine = np.array([0, 0, 0, -800], np.float32)
    found = importance_sums(trainer, engine, EACH[: len(engine)]).finish()
    assert found.max_difference == 799
    assert found.effective_sample_size == pytest.approx(1 / 4, rel=1e-6)
