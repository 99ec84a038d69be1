"""Losses of whole sequences or of the whole minibatch: the same for any split over ranks and micro-batches."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_trainer.losses.covariance import CovarianceSums
from rljob_trainer.losses.spread import added, reported
from rljob_trainer.rank.sharding import load_initial_weights
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    bundle_of,
    largest_difference,
    plans_of,
    random_advantages,
    random_trajectories,
    record_gradients,
    several_turns,
    write_model,
)

TRAJECTORIES = [
    *random_trajectories(7),
    several_turns([(3, 5), (7, 11)], tokens=11, seed=1),
    several_turns([(2, 3), (5, 6), (9, 14)], tokens=16, seed=2),
]
ADVANTAGES = random_advantages(TRAJECTORIES)
REWARDS = [0.0, 1.0, 0.0, 0.5, -1.0, 1.0, 0.0, 2.0, 0.0]
TOLERANCE = 2e-5
SETTINGS: dict[str, dict[str, Any]] = {
    "gspo": {},
    "geo_mean": {},
    "topr": {},
    "sppo": {"sppoEta": 1},
    "cispo": {"clipRatioHigh": 0.05, "positiveNllCoefficient": 0.3},
    "dppo_tv": {"clipRatioHigh": 1e-4},
    "clip_cov": {"clipCovRatio": 0.2, "clipCovLb": 0.1, "clipCovUb": 5.0},
    "kl_cov": {"klCovRatio": 0.2},
}
"""Those that are unlike clip in what they need beyond a token."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The policy before the step, and one close to it, so that ratios are not 1."""
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "start", "tied"), write_model(folder / "moved", "tied", noise=0.02)


def spec(ranks, name):
    algorithm = {"preset": "dr_grpo", "loss": name, "aggregation": "sequence_mean"} | SETTINGS[name]
    return make_spec(ranks, algorithm=algorithm, actor={"epochs": 2, "gradClip": 1e6})


def keep_some(sample):
    """Rejects the first token of each trajectory with an even first token."""
    return np.arange(sample.loss_tokens) >= (sample.trajectory.token_ids[0] % 2 == 0)


def first_update(worker, models, budget, rejection=None):
    """The gradient of the first optimizer step, the sums of all, and which tokens were chosen, by trajectory."""
    plans, totals = plans_of(TRAJECTORIES, worker.settings.world, budget, rewards=REWARDS)
    plan = plans[worker.settings.rank]
    if rejection is not None:
        worker.rejection = rejection
    worker.load(models[0])
    worker.begin_stage("rl")
    worker.prepare(plan, totals, *bundle_of(TRAJECTORIES, REWARDS))
    shard = worker._shard
    worker.folder = Path(models[1])
    load_initial_weights(worker.policy.module, worker.spec, worker.folder, worker.mesh)
    gradients = record_gradients(worker)
    sums = worker.update([ADVANTAGES[index] for index in plan.samples], 1e-3, 0.5, MARK).sums
    chosen = {index: sample.chosen for index, sample in shard.samples.items() if sample.chosen is not None}
    return gradients[0], sums, chosen


def all_of(results):
    """Sums of all ranks, and the chosen tokens of all."""
    sums = [each for _, each, _ in results]
    numbers = [sum(getattr(part, name) for part in sums) for name in ("loss", "clipped", "drift", "tokens")]
    covariance = sum((part.covariance for part in sums), start=CovarianceSums()).covariance()
    return [*numbers, covariance], {index: tokens for _, _, chosen in results for index, tokens in chosen.items()}


@pytest.mark.parametrize("rejection", [None, keep_some])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_gradient_depends_neither_on_ranks_nor_on_micro_batches(models, two_ranks, name, rejection):
    whole = alone(spec(1, name), first_update, models, 10_000, rejection)
    expected, (numbers, chosen) = whole[0], all_of([whole])
    if name.endswith("_cov"):
        assert 0 < sum(int(each.sum()) for each in chosen.values()) <= 0.2 * sum(map(len, chosen.values()))
    elif name != "sppo":  # it has none
        assert numbers[1] > 0, "no token reaches a bound"
    for results in (
        [alone(spec(1, name), first_update, models, 1, rejection)],
        two_ranks.run(spec(2, name), first_update, models, 10_000, rejection),
        two_ranks.run(spec(2, name), first_update, models, 30, rejection),
    ):
        assert all(largest_difference(gradient, expected) < TOLERANCE for gradient, _, _ in results)
        again, also_chosen = all_of(results)
        assert again == pytest.approx(numbers, rel=1e-4, abs=1e-6)
        assert chosen.keys() == also_chosen.keys()
        assert all(np.array_equal(chosen[index], also_chosen[index]) for index in chosen)


CORRECTIONS = {
    "decoupled": {
        "loss": "dual_clip",
        "rolloutCorrection": {
            "rolloutIs": "token", "rolloutIsThreshold": "0.03", "rolloutIsBatchNormalize": True,
            "rolloutRs": ["token_k1", "seq_mean_k1"], "rolloutRsThreshold": ["0.1_400.0", "0.5_45.0"],
        },
    },
    "bypass": {
        "loss": "gpg",
        "rolloutCorrection": {
            "bypassMode": True, "lossType": "reinforce", "rolloutIs": "sequence", "rolloutIsThreshold": "0.0001",
            "rolloutIsBatchNormalize": True, "rolloutRs": ["seq_max_k2"], "rolloutRsThreshold": ["10.0"],
        },
    },
    "bypass without a mask": {
        "loss": "gpg",
        "rolloutCorrection": {
            "bypassMode": True, "lossType": "reinforce", "rolloutIs": "token", "rolloutIsThreshold": "0.03",
        },
    },
}  # fmt: skip


def corrected(ranks, name, **more):
    correction: Any = CORRECTIONS[name]
    algorithm = {"preset": "dr_grpo", **correction, "rolloutCorrection": correction["rolloutCorrection"] | more}
    return make_spec(ranks, algorithm=algorithm, actor={"epochs": 2, "gradClip": 1e6})


def corrected_update(worker, models, budget):
    """The gradient of the first optimizer step, the sums of all, and the correction's metrics."""
    plans, totals = plans_of(TRAJECTORIES, worker.settings.world, budget, minibatches=2)
    plan = plans[worker.settings.rank]
    worker.load(models[0])
    worker.begin_stage("rl")
    gradients = record_gradients(worker)
    worker.prepare(plan, totals, *bundle_of(TRAJECTORIES))
    updated = worker.update([ADVANTAGES[index] for index in plan.samples], 1e-3, 0.0, MARK)
    return gradients[0], updated.sums, updated.correction


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_depends_neither_on_ranks_nor_on_micro_batches(models, two_ranks, name):
    expected, sums, correction = alone(corrected(1, name), corrected_update, models, 10_000)
    metrics = reported(correction)
    assert metrics["rollout_corr/rollout_is_max"] > metrics["rollout_corr/rollout_is_min"]
    rejects = "rolloutRs" in CORRECTIONS[name]["rolloutCorrection"]
    tokens = 4 * sum(each.loss_tokens for each in TRAJECTORIES) / 2
    assert (0 < metrics.get("rollout_corr/rollout_rs_masked_fraction", 0) < 1) == rejects == (sums.tokens < tokens)
    for results in (
        [alone(corrected(1, name), corrected_update, models, 1)],
        two_ranks.run(corrected(2, name), corrected_update, models, 30),
    ):
        assert all(largest_difference(gradient, expected) < TOLERANCE for gradient, _, _ in results)
        assert sum(part.loss for _, part, _ in results) == pytest.approx(sums.loss, rel=1e-4)
        assert reported(added([part for *_, part in results])) == pytest.approx(metrics, rel=1e-3, abs=1e-5)


def test_a_bypass_weighs_before_the_pass_as_in_it(models):
    name = "bypass without a mask"
    expected, *_ = alone(corrected(1, name), corrected_update, models, 40)
    before = corrected(1, name, rolloutRs=["token_k3"], rolloutRsThreshold=["1000000"])
    assert largest_difference(alone(before, corrected_update, models, 40)[0], expected) < TOLERANCE


def drift_from_engine(worker, models):
    """Mean difference of engine and trainer: as the step begins, and as the step reports it."""
    (plan,), totals = plans_of(TRAJECTORIES, 1, 10_000)
    worker.load(models[0])
    worker.begin_stage("rl")
    before = np.concatenate(worker.log_probs(TRAJECTORIES))
    worker.prepare(plan, totals, *bundle_of(TRAJECTORIES))
    updated = worker.update([ADVANTAGES[index] for index in plan.samples], 0.05, 0.0, MARK)
    found = reported(updated.correction)["rollout_corr/kl"]
    return (
        float(np.abs(before + 1).mean()),
        updated.importance.finish().mean_difference,
        float(-1 - before.mean()),
        found,
    )


def test_a_bypass_reports_the_policy_as_the_step_began_whatever_its_epochs(models):
    spec = make_spec(algorithm={"rolloutCorrection": {"bypassMode": True}}, actor={"epochs": 3, "gradClip": 1e6})
    mean, found, kl, found_kl = alone(spec, drift_from_engine, models)
    assert (found, found_kl) == pytest.approx((mean, kl), rel=1e-5)


def test_right_responses_are_imitated(models):
    """With advantages of 0, what is left of the gradient is that of their mean negative log-probability."""
    settings = {"preset": "dr_grpo", "positiveNllCoefficient": 0.3}
    found, expected = alone(make_spec(algorithm=settings, actor={"gradClip": 1e6}), imitation, models)
    assert largest_difference(found, expected) < TOLERANCE


def imitation(worker, models):
    right = [each for each, reward in zip(TRAJECTORIES, REWARDS, strict=True) if reward > 0]
    found, gradients = [], []
    for stage, given in (("rl", TRAJECTORIES), ("sft", right)):
        (plan,), totals = plans_of(given, 1, 40, rewards=REWARDS if stage == "rl" else None)
        worker.load(models[0])
        worker.begin_stage(stage)
        gradients = record_gradients(worker)
        if stage == "sft":
            worker.supervised_step(plan, totals, given, 1e-3, MARK)
        else:
            worker.prepare(plan, totals, *bundle_of(given, REWARDS))
            worker.update([np.zeros(given[i].loss_tokens, np.float32) for i in plan.samples], 1e-3, 0.0, MARK)
        found.append(gradients[0])
    rl, sft = found
    return rl, {name: 0.3 * gradient for name, gradient in sft.items()}


# ---------------------------------------------------------------------- early stop, and a reference that follows


def stopping_spec(ranks, **bounds):
    algorithm = {"preset": "dr_grpo", "clipRatio": 0.01, "earlyStop": bounds}
    return make_spec(ranks, algorithm=algorithm, actor={"epochs": 6, "gradClip": 1e6})


def updates(worker, models, budget):
    plans, totals = plans_of(TRAJECTORIES, worker.settings.world, budget, minibatches=2)
    plan = plans[worker.settings.rank]
    worker.load(models[0])
    worker.begin_stage("rl")
    worker.prepare(plan, totals, *bundle_of(TRAJECTORIES))
    sums = worker.update([ADVANTAGES[index] for index in plan.samples], 3e-3, 0.0, MARK).sums
    return len(sums.grad_norms), sums.minibatches, sums.drift, sums.clipped, sums.tokens


@pytest.mark.parametrize("bounds", [{"kl": 0.003}, {"clipFraction": 0.2}])
def test_a_step_ends_before_the_update_that_would_exceed_a_bound(models, two_ranks, bounds):
    every, _, *_ = alone(stopping_spec(1), updates, models, 10_000)
    made, minibatches, *_ = alone(stopping_spec(1, **bounds), updates, models, 10_000)
    assert every == 12
    assert 0 < made < 12
    assert minibatches == made + 1
    for result in two_ranks.run(stopping_spec(2, **bounds), updates, models, 30):
        assert result[:2] == (made, minibatches)


def test_the_reference_follows_the_policy_every_so_many_steps(models):
    algorithm = {"preset": "grpo", "kl": {"refreshEvery": 2}}
    distances = alone(make_spec(algorithm=algorithm, sft={"steps": 3}), reference_distances, models)
    assert [distance == 0 for distance in distances] == [False, True, False, True]


def reference_distances(worker, models):
    """How far the reference is from the policy after RL steps 1 to 4, which are steps 4 to 7 of the run."""
    plans, totals = plans_of(TRAJECTORIES, 1, 40)
    worker.load(models[0])
    worker.begin_stage("rl")
    found = []
    for step in range(4, 8):
        worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
        worker.update([ADVANTAGES[i] for i in plans[0].samples], 1e-3, 0.1, replace(MARK, step=step))
        pairs = zip(worker.policy.network.parameters(), worker.reference.role.network.parameters(), strict=True)
        found.append(max(float((ours - theirs).detach().abs().max()) for ours, theirs in pairs))
    return found
