"""What must not depend on the number of ranks, nor on how a batch is split: gradients, updates, checkpoints."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_trainer.rank.results import StepSums
from rljob_trainer.rank.shard import ShardSample
from rljob_trainer.rank.sharding import load_initial_weights
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    Ranks,
    alone,
    bundle_of,
    largest_difference,
    parameters,
    plans_of,
    random_advantages,
    random_trajectories,
    record_gradients,
    several_turns,
    write_model,
)

TRAJECTORIES = [
    *random_trajectories(6, temperature=0.8),
    several_turns([(3, 5), (7, 11)], tokens=11, seed=1, temperatures=[0.8, 1.2]),
    several_turns([(2, 3), (5, 6), (9, 14)], tokens=16, seed=2, temperatures=[0.8] * 3),
    random_trajectories(7)[6],
]
ADVANTAGES = random_advantages(TRAJECTORIES)
TOLERANCE = {"cpu": 2e-5, "cuda": 1e-3}
"""Of gradients, as a share of the largest value of a tensor; of sums; of log-probabilities, in nats."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The policy before the step (and reference), and one close to it."""
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "start", "tied"), write_model(folder / "moved", "tied", noise=0.02)


@pytest.fixture(
    scope="module",
    params=[
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")),
    ],
)
def device(request):
    """Over gloo, and over NCCL."""
    return request.param


@pytest.fixture(scope="module")
def one(device):
    return partial(alone, device=device)


@pytest.fixture(scope="module")
def two(device, request):
    if device == "cpu":
        yield request.getfixturevalue("two_ranks")
        return
    with Ranks(2, device) as ranks:
        yield ranks


def reinforced_gradient(worker, models, sequences, advantages, budget):
    """The gradient of the first optimizer step, where policy, old policy and reference all differ."""
    plans, totals = plans_of(sequences, worker.settings.world, budget)
    plan = plans[worker.settings.rank]
    worker.load(models[0])
    worker.begin_stage("rl")
    worker.prepare(plan, totals, *bundle_of(sequences))
    worker.folder = Path(models[1])
    load_initial_weights(worker.policy.module, worker.spec, worker.folder, worker.mesh)
    gradients = record_gradients(worker)
    updated = worker.update([advantages[index] for index in plan.samples], 1e-3, 0.5, MARK)
    return gradients[0], updated.sums


def in_float32(ranks: int, **blocks):
    """The default on a CPU, not on a GPU."""
    return make_spec(ranks, model={"path": "model", "dtype": "float32"}, **blocks)


def supervised_gradient(worker, models, sequences, budget):
    plans, totals = plans_of(sequences, worker.settings.world, budget)
    worker.load(models[0])
    worker.begin_stage("sft")
    gradients = record_gradients(worker)
    sums = worker.supervised_step(plans[worker.settings.rank], totals, sequences, 1e-3, MARK).sums
    return gradients[0], sums


def added(parts: list[StepSums]) -> list[float]:
    return [sum(getattr(part, name) for part in parts) for name in ("loss", "entropy", "kl", "clipped", "tokens")]


def reinforced_spec(ranks: int, aggregation: str):
    algorithm = {
        "aggregation": aggregation,
        "kl": {"placement": "loss", "estimator": "k3"},
        "entropyCoefficient": 0.3,
    }
    # Two epochs, so that the log-probabilities before the step are those of `prepare`, and ratios are not 1.
    actor = {"epochs": 2, "gradClip": 1e6}
    return in_float32(ranks, algorithm=algorithm, actor=actor)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "dr_grpo"])
def test_the_policy_gradient_depends_neither_on_ranks_nor_on_micro_batches(models, device, one, two, aggregation):
    arguments = (models, TRAJECTORIES, ADVANTAGES)
    expected, sums = one(reinforced_spec(1, aggregation), reinforced_gradient, *arguments, 10_000)
    assert sums.clipped > 0
    assert sums.kl > 0
    assert all(gradient.abs().max() > 0 for gradient in expected.values())
    for budget in (40, 1):
        ours, again = one(reinforced_spec(1, aggregation), reinforced_gradient, *arguments, budget)
        assert largest_difference(ours, expected) < TOLERANCE[device]
        assert added([again]) == pytest.approx(added([sums]), rel=1e-4)
    for budget in (10_000, 40):
        results = two.run(reinforced_spec(2, aggregation), reinforced_gradient, *arguments, budget)
        assert all(largest_difference(ours, expected) < TOLERANCE[device] for ours, _ in results)
        assert added([part for _, part in results]) == pytest.approx(added([sums]), rel=1e-4)


def test_the_supervised_gradient_depends_neither_on_ranks_nor_on_micro_batches(models, device, one, two):
    expected, sums = one(in_float32(1), supervised_gradient, models, TRAJECTORIES, 10_000)
    for results in (
        [one(in_float32(1), supervised_gradient, models, TRAJECTORIES, 40)],
        two.run(in_float32(2), supervised_gradient, models, TRAJECTORIES, 10_000),
        two.run(in_float32(2), supervised_gradient, models, TRAJECTORIES, 1),
    ):
        assert all(largest_difference(ours, expected) < TOLERANCE[device] for ours, _ in results)
        assert sum(part.loss for _, part in results) == pytest.approx(sums.loss, rel=TOLERANCE[device] / 2)
        assert [part.grad_norms for _, part in results] == [
            pytest.approx(sums.grad_norms, rel=TOLERANCE[device] / 2)
        ] * len(results)


def test_a_rank_without_samples_takes_part(models, device, one, two):
    short = TRAJECTORIES[:1]
    expected, sums = one(in_float32(1), supervised_gradient, models, short, 100)
    results = two.run(in_float32(2), supervised_gradient, models, short, 100)
    assert [part.tokens for _, part in results] == [short[0].loss_tokens, 0]
    assert all(largest_difference(ours, expected) < TOLERANCE[device] for ours, _ in results)
    arguments = (models, short, ADVANTAGES[:1], 100)
    expected, sums = one(reinforced_spec(1, "token_mean"), reinforced_gradient, *arguments)
    results = two.run(reinforced_spec(2, "token_mean"), reinforced_gradient, *arguments)
    assert all(largest_difference(ours, expected) < TOLERANCE[device] for ours, _ in results)
    assert added([part for _, part in results]) == pytest.approx(added([sums]), rel=1e-4)


def uneven(sample):
    """Rejects a whole trajectory, all but one token of another, and nothing of most."""
    first, R = int(sample.trajectory.token_ids[0]), sample.loss_tokens
    return np.arange(R) >= (R if first % 3 == 0 else R - 1 if first % 3 == 1 else 0)


def masked_gradient(worker, *arguments):
    worker.rejection = uneven
    return reinforced_gradient(worker, *arguments)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "dr_grpo"])
def test_tokens_are_rejected_before_anything_is_divided_by_their_number(models, device, one, two, aggregation):
    """As if the rejected tokens had not been in the loss at all, for any number of ranks and any split."""
    remain = [uneven(ShardSample(each)) for each in TRAJECTORIES]
    assert {mask.all() for mask in remain} == {True, False}
    assert any(not mask.any() for mask in remain)
    kept = [without(each, mask) for each, mask in zip(TRAJECTORIES, remain, strict=True) if mask.any()]
    advantages = [each[mask] for each, mask in zip(ADVANTAGES, remain, strict=True) if mask.any()]
    expected, sums = one(reinforced_spec(1, aggregation), reinforced_gradient, models, kept, advantages, 10_000)
    arguments = (models, TRAJECTORIES, ADVANTAGES)
    for budget in (10_000, 40):
        results = [one(reinforced_spec(1, aggregation), masked_gradient, *arguments, budget)]
        results += two.run(reinforced_spec(2, aggregation), masked_gradient, *arguments, budget)
        assert all(largest_difference(ours, expected) < TOLERANCE[device] for ours, _ in results)
        for parts in (results[:1], results[1:]):
            assert added([part for _, part in parts]) == pytest.approx(added([sums]), rel=1e-4)


def without(trajectory, mask):
    """The trajectory with only those of its tokens in the loss that the mask leaves."""
    in_loss = trajectory.in_loss.copy()
    in_loss[np.flatnonzero(in_loss)[~mask]] = False
    return replace(trajectory, in_loss=in_loss)


@pytest.mark.parametrize("reshard_after_forward", [True, False])
def test_scoring_without_gradient_sees_the_newest_weights(models, two, reshard_after_forward):
    spec = in_float32(2, actor={"fsdp": {"reshardAfterForward": reshard_after_forward}})
    for after_update, fresh in two.run(spec, scores_after_an_update, models):
        assert np.abs(after_update - fresh).max() < 1e-6


def scores_after_an_update(worker, models):
    """Log-probabilities of a policy that has scored before its weights changed, and of one that has not."""
    worker.load(models[0])
    worker.log_probs(TRAJECTORIES)
    worker.folder = Path(models[1])
    load_initial_weights(worker.policy.module, worker.spec, worker.folder, worker.mesh)
    after_update = worker.log_probs(TRAJECTORIES)
    worker.load(models[1])
    return np.concatenate(after_update), np.concatenate(worker.log_probs(TRAJECTORIES))


# ---------------------------------------------------------------------- checkpoints


def trained(worker, models, directory):
    """Two steps, a checkpoint, and then what comes next."""
    worker.load(models[0])
    worker.begin_stage("rl")
    for _ in range(2):
        _reinforce(worker)
    worker.begin_save(directory)
    worker.finish_save()
    return _what_comes_next(worker)


def resumed(worker, models, directory):
    worker.load(models[1])
    worker.begin_stage("rl")
    worker.restore(directory)
    return _what_comes_next(worker)


def _what_comes_next(worker):
    """Log-probabilities of policy and reference, and the parameters after one more update."""
    policy = np.concatenate(worker.log_probs(TRAJECTORIES))
    sums = _reinforce(worker)
    return policy, sums.kl, parameters(worker)


def _reinforce(worker):
    plans, totals = plans_of(TRAJECTORIES, worker.settings.world, 60)
    plan = plans[worker.settings.rank]
    worker.prepare(plan, totals, *bundle_of(TRAJECTORIES))
    return worker.update([ADVANTAGES[index] for index in plan.samples], 1e-2, 0.1, MARK).sums


@pytest.mark.parametrize("writers", [1, 2])
def test_a_checkpoint_is_continued_by_any_number_of_ranks(models, device, one, two, tmp_path, writers):
    def run(ranks, task):
        spec = in_float32(ranks, algorithm={"kl": {"placement": "loss"}})
        arguments = (models, str(tmp_path / "step-2-a1" / "ranks"))
        return two.run(spec, task, *arguments) if ranks == 2 else [one(spec, task, *arguments)]

    expected = run(writers, trained)
    for readers in (1, 2):
        results = run(readers, resumed)
        assert sum(kl for _, kl, _ in results) == pytest.approx(sum(kl for _, kl, _ in expected), rel=1e-4)
        for log_probs, _, after in results:
            assert np.abs(log_probs - expected[0][0]).max() < TOLERANCE[device] / 2
            torch.testing.assert_close(after, expected[0][2], rtol=0, atol=2.5 * TOLERANCE[device])
