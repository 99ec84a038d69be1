"""Advantages against verl's numbers (tools/verl_golden.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("verl.json").read_text())


@pytest.mark.parametrize("name", sorted(GOLDEN["advantages"].keys() & ADVANTAGES.keys()))
def test_advantages_are_verls(name):
    """Rewards are none of them equal or 0, so that verl's alpha of GPG is 1 as ours is."""
    given = GOLDEN["inputs"]
    batch = AdvantageBatch(
        np.array(given["rewards"], np.float32), np.array(given["groups"]), np.array(given["lengths"]), gamma=0.9,
        baselines=np.array(given["baselines"], np.float32),
    )  # fmt: skip
    expected = np.array(GOLDEN["advantages"][name])
    if name.startswith("reinforce"):  # verl whitens with the variance over n - 1 tokens, and the paper over n
        expected *= np.sqrt(len(expected) / (len(expected) - 1))
    np.testing.assert_allclose(ADVANTAGES[name](batch), expected, rtol=2e-5, atol=1e-6)


def test_verl_has_all_but_these():
    assert ADVANTAGES.keys() - GOLDEN["advantages"].keys() == {
        "dr_grpo", "maxrl", "gae", "gigpo", "best_worst", "win_rate", "distillation",
    }  # fmt: skip  # gae: test_gae.py; gigpo: test_stepwise.py; distillation: test_distillation.py
