"""What a run does about bad gradients, and how its state follows what updates find."""

from datetime import UTC, datetime

import pytest

from rljob_api.resolve import ResolvedKl
from rljob_api.v1alpha1.training import OnBadGradient
from rljob_trainer.errors import JobError
from rljob_trainer.loop.gradients import JUDGED_AFTER, GradientGuard
from rljob_trainer.loop.metrics import supervised_metrics
from rljob_trainer.loop.state import LoopState
from rljob_trainer.losses.kl_controller import KlController
from rljob_trainer.progress import names
from rljob_trainer.rank.results import LARGEST_NORM, StepSums, Updated


def guard(**settings):
    return GradientGuard(OnBadGradient.model_validate(settings))


def test_no_norm_is_too_large_before_there_is_a_usual_one():
    young = guard(spikeFactor=3)
    young.observe([2.0] * (JUDGED_AFTER - 1), [])
    assert young.bound == LARGEST_NORM
    young.observe([2.0], [])
    assert young.bound == pytest.approx(6.0)
    assert guard().bound == LARGEST_NORM


def test_the_usual_norm_forgets_and_learns_no_more_than_the_bound_from_what_was_skipped():
    follows = guard(spikeFactor=2)
    follows.observe([1.0] * 100, [])
    follows.observe([], [1000.0, float("nan"), float("inf")])
    assert follows.mean == pytest.approx(1.01)
    follows.observe([3.0] * 100, [])
    assert follows.mean == pytest.approx(3 - 1.99 * 0.99**100)


def test_steps_without_signal_are_no_measure():
    quiet = guard(spikeFactor=3)
    quiet.observe([0.0] * (2 * JUDGED_AFTER), [])
    assert quiet.bound == LARGEST_NORM


def test_a_run_ends_after_too_many_steps_in_a_row_with_a_skipped_update():
    strict = guard(maxSkips=1)
    for norms, skipped in (([], [float("nan")]), ([1.0], []), ([1.0], [float("inf")])):
        strict.observe(norms, skipped)
        strict.check(7, skipped, kept=True)
    strict.observe([], [float("nan")])
    with pytest.raises(JobError, match=r"^spec\.actor\.learningRate: step 8 is the last of 2 in a row .* bad_batches/"):
        strict.check(8, [float("nan")], kept=True)
    with pytest.raises(JobError, match="the driver that had its samples was lost"):
        strict.check(8, [float("nan")], kept=False)


def test_it_survives_a_resume():
    before, after = guard(), guard()
    before.observe([2.0, 4.0], [1e9])
    after.load_state_dict(before.state_dict())
    assert after == before


def state(placement: str) -> LoopState:
    kl = ResolvedKl(
        placement=placement, estimator="k3", coefficient=0.1, controller="adaptive", target=1.0, horizon=100
    )
    return LoopState(None, None, KlController(kl), guard(), "digest", datetime(2026, 1, 1, tzinfo=UTC))


def updated(kl: float, trajectories: int, skipped: tuple[float, ...] = ()) -> Updated:
    return Updated(
        StepSums(1.0, 0.0, kl, 0.0, 50, [2.0], trajectories=trajectories, minibatches=2, skipped=list(skipped))
    )


def test_an_adaptive_coefficient_follows_the_divergence_in_the_loss():
    # (6 + 5) / 10 responses = 1.1 nats: error 0.1, of 10 samples in a horizon of 100.
    follows = state("loss")
    follows.observe("rl", [updated(6.0, 6), updated(5.0, 4)])
    assert follows.kl.coefficient == pytest.approx(0.1 * (1 + 0.1 * 0.1))


@pytest.mark.parametrize(
    ("placement", "stage", "skipped"), [("reward", "rl", ()), ("loss", "sft", ()), ("loss", "rl", (float("nan"),))]
)
def test_nothing_else_moves_it(placement, stage, skipped):
    stays = state(placement)
    stays.observe(stage, [updated(6.0, 6, skipped)])
    assert stays.kl.coefficient == 0.1


def test_the_metrics_of_a_step_with_a_skipped_update_are_finite():
    broken = Updated(StepSums(float("nan"), 5.0, 0.0, 0.0, 50, [], minibatches=1, skipped=[float("nan")]))
    metrics = supervised_metrics([broken], 1e-3)
    assert metrics == {
        names.ACTOR_ENTROPY: 0.1, names.ACTOR_UPDATES: 0, names.ACTOR_UPDATES_SKIPPED: 1,
        names.ACTOR_LEARNING_RATE: 1e-3,
    }  # fmt: skip
