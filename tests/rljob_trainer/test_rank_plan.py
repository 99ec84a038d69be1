"""Who computes which sample: properties over random tables. And the learning rate over the steps."""

import numpy as np
import pytest

from rljob_trainer.rank.learning_rate import learning_rate
from rljob_trainer.rank.plan import RankPlan, plan_step


def random_table(seed):
    """Lengths, minibatches, ranks and a budget; some samples are longer than the budget."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 60, size=draw.integers(1, 40)).tolist()
    order = draw.permutation(len(lengths))
    minibatches = [part.tolist() for part in np.array_split(order, draw.integers(1, 4)) if len(part)]
    return lengths, minibatches, int(draw.integers(1, 6)), int(draw.integers(10, 120))


@pytest.mark.parametrize("seed", range(60))
def test_every_plan_keeps_its_promises(seed):
    lengths, minibatches, ranks, budget = random_table(seed)
    plans = plan_step(lengths, minibatches, ranks, budget)
    assert len(plans) == ranks
    for index, minibatch in enumerate(minibatches):
        shares = [plan.minibatches[index] for plan in plans]
        samples = [sample for share in shares for micro_batch in share for sample in micro_batch]
        assert sorted(samples) == sorted(minibatch), "every sample exactly once, in its own minibatch"
        assert len({len(share) for share in shares}) == 1, "equally many passes for every rank"
        for micro_batch in (micro_batch for share in shares for micro_batch in share):
            tokens = sum(lengths[sample] for sample in micro_batch)
            assert tokens <= budget or len(micro_batch) == 1, "the budget, but for one sample that exceeds it alone"
        loads = [sum(lengths[s] for micro_batch in share for s in micro_batch) for share in shares]
        longest = max(lengths[sample] for sample in minibatch)
        assert max(loads) <= sum(loads) / ranks + longest * (1 - 1 / ranks), "Graham's bound for lists"


def test_equal_lengths_are_spread_evenly():
    plans = plan_step([10] * 24, [list(range(24))], 4, 30)
    assert [len(plan.samples) for plan in plans] == [6] * 4
    assert [len(plan.minibatches[0]) for plan in plans] == [2] * 4


def test_the_example_of_the_docstring():
    assert plan_step([9, 8, 3, 2, 2], [[0, 1, 2, 3, 4]], 2, 12) == [
        RankPlan((((0,), (3, 4)),)),
        RankPlan((((1,), (2,)),)),
    ]


def test_passes_are_about_as_full_as_one_another():
    """128 of 140 tokens need two passes of 16,384; filling the first would leave 11 for the other."""
    (plan,) = plan_step([140] * 128, [list(range(128))], 1, 16384)
    assert [len(micro_batch) for micro_batch in plan.minibatches[0]] == [64, 64]


def test_a_rank_splits_a_pass_rather_than_idle():
    """Rank 1's three short samples fit one pass, but rank 0 needs two."""
    plans = plan_step([40, 38, 30, 25, 20], [list(range(5))], 2, 80)
    passes = [plan.minibatches[0] for plan in plans]
    assert [len(share) for share in passes] == [len(passes[0])] * 2
    assert all(micro_batch for share in passes for micro_batch in share)


def test_more_ranks_than_samples_leave_idle_passes():
    plans = plan_step([5], [[0]], 3, 10)
    assert [plan.minibatches for plan in plans] == [(((0,),),), (((),),), (((),),)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0]),
        ("linear", [1.0, 2.0, 3.0, 4.0, 3.2, 2.4, 1.6, 0.8]),
        # 4 (1 + cos(pi k / 5)) / 2 for k = 0..4
        ("cosine", [1.0, 2.0, 3.0, 4.0, 3.618034, 2.618034, 1.381966, 0.381966]),
    ],
)
def test_the_learning_rate_warms_up_for_three_of_eight_steps(schedule, expected):
    assert [learning_rate(step, 4.0, 8, 3, schedule) for step in range(8)] == pytest.approx(expected)


def test_the_learning_rate_starts_at_its_peak_without_a_warm_up():
    assert [learning_rate(step, 1.0, 4, 0, "linear") for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert learning_rate(0, 1.0, 1, 0, "cosine") == 1.0


def test_a_warm_up_that_is_longer_than_the_job_never_ends():
    assert [learning_rate(step, 1.0, 2, 3, "cosine") for step in range(2)] == [0.25, 0.5]
