"""A run whose engines stay unlike its trainer says so at once, and ends."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rljob_trainer.attempt.claim import exit_record
from rljob_trainer.engines.engine import Completion
from rljob_trainer.errors import EngineLost, EngineMismatch
from rljob_trainer.loop.agreement import Agreement
from rljob_trainer.losses.diagnostics import importance_sums
from rljob_trainer.progress import names
from rljob_trainer.rank.results import ProbeScores
from rljob_trainer.rollouts.weight_sync import WeightSync
from tests.rljob_trainer.checkpoint_support import make_spec

OWN, PROBE = names.ROLLOUT_LOG_PROB_DIFF_MEAN, names.SYNC_PROBE_MEAN


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([{OWN: 0.2}] * 3, True),
        ([{OWN: math.nan}] * 3, True),
        ([{OWN: 0.2, PROBE: 0.0}] * 3, True),
        ([{PROBE: 0.2}] * 3, True),
        ([{OWN: 0.2}, {}, {OWN: 0.2}, {OWN: 0.2}], True),
        ([{OWN: 0.2}] * 2, False),
        ([{OWN: 0.2}, {OWN: 0.2}, {OWN: 0.1}, {OWN: 0.2}, {OWN: 0.2}], False),
        ([{OWN: 0.0, PROBE: 0.2}] * 3, False),
        ([{}] * 3, False),
    ],
)
def test_three_steps_in_a_row_that_differ_end_the_run(steps, ends):
    agreement = Agreement(tolerance=0.1)
    for step, metrics in enumerate(steps[:-1]):
        agreement.check(step, metrics)
    if not ends:
        agreement.check(len(steps), steps[-1])
        return
    with pytest.raises(EngineMismatch) as raised:
        agreement.check(len(steps), steps[-1])
    record = exit_record(raised.value)
    assert (record.code, record.reason, record.field) == (64, "EngineMismatch", "spec.rollout.engine")


def test_a_probe_that_new_engines_fail_too_ends_the_run():
    """Their replacements come between the syncs; one that agrees makes the next failure the first again."""
    here: Any = SimpleNamespace(name="engine-0")
    ids, zeros = np.zeros(1, np.int32), np.zeros(1, np.float32)
    answers = [[Completion("probe/0", 0, ids, zeros, ids, "length")]]
    weights = WeightSync(make_spec(), "cpu", here, here, vocab_size=9)

    def sync(difference: float) -> None:
        weights._compare([here], answers, ProbeScores([[zeros + difference]]), version=1)

    for difference in (1.0, 1.0, 0.0, 1.0, 1.0):
        with nullcontext() if difference == 0 else pytest.raises(EngineLost):
            sync(difference)
    with pytest.raises(EngineMismatch):
        sync(math.nan)


def test_the_difference_is_that_of_the_present_version():
    ours, theirs = np.array([-1.0, -2.0, -3.0], np.float32), np.array([-1.5, -2.0, -1.0], np.float32)
    found = importance_sums(ours, theirs, np.array([True, True, False])).finish()
    assert (found.mean_difference, found.max_difference) == (0.25, 0.5)
    old = importance_sums(ours, theirs, np.zeros(3, np.bool_)).finish()
    assert (old.mean_difference, old.max_difference) == (None, None)
    assert old.effective_sample_size == found.effective_sample_size
