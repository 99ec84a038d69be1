"""Preference losses: numbers by hand, TRL's, the same gradient for every split, pairs of groups and of rows."""

import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from rljob_trainer.advantage import ADVANTAGES, AdvantageBatch
from rljob_trainer.loop.batches import advantages, batch_of_groups, batch_of_rows
from rljob_trainer.losses.aggregation import token_weights
from rljob_trainer.losses.policy import LOSSES, PolicyBatch
from rljob_trainer.losses.policy.terms import Pairs
from rljob_trainer.losses.preference import PREFERENCE, PreferenceSums
from rljob_trainer.losses.spread import reported
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.correcting import correction_of
from rljob_trainer.rank.plan import RankPlan, plan_units
from rljob_trainer.rank.rank import _importance
from rljob_trainer.rank.shard import Shard, ShardSample
from rljob_trainer.rank.sharding import load_initial_weights
from rljob_trainer.types import Episode, Group, GroupSummary, Task, answered
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    largest_difference,
    random_trajectories,
    record_gradients,
    write_model,
)
from tests.rljob_trainer.test_losses_against_trl import Rollout, assert_same_gradients, letters, tiny_model, trl

__all__ = ["trl"]
ROOMY = {"tokensPerMicroBatch": 4096, "gradClip": 1e6}
ROWS = random_trajectories(10, seed=3)
"""Five pairs."""


def batch(log_probs, reference, lengths, trajectories=None):
    """Two trajectories a pair, preferred first. lengths: [[preferred, rejected] of each pair]."""
    signs = np.repeat([1, -1] * len(lengths), [each for pair in lengths for each in pair])
    return PolicyBatch(
        log_probs, torch.from_numpy(signs).to(log_probs), reference_log_probs=reference,
        pairs=Pairs(torch.tensor([sum(pair) for pair in lengths]), torch.tensor(trajectories or [2] * len(lengths))),
    )  # fmt: skip


def test_a_device_spreads_the_losses_of_pairs_without_being_asked_for_their_lengths():
    """The meta device has none to tell."""
    pairs = Pairs(torch.tensor([3, 2], device="meta"), torch.tensor([2, 2], device="meta"))
    assert pairs.spread(torch.zeros(2, device="meta"), 5).shape == (5,)


def test_dpo_by_hand():
    # Pair 1: h(y+) = (-1 + 2) + (-1 + 1) = 1, h(y-) = -2 + 1 = -1; beta 0.5: -log sigmoid(0.5 x 2) = log(1 + 1/e).
    # Pair 2: h(y+) = 0, h(y-) = 2: -log sigmoid(-1) = log(1 + e), and each of its four trajectories counts half.
    # The gradient by a token's log pi is -beta sigmoid(-margin) for y+, and the opposite for y-.
    log_probs = torch.tensor([-1.0, -1.0, -2.0, -3.0, -1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-2.0, -1.0, -1.0, -3.0, -3.0], dtype=torch.float64)
    settings = make_spec(algorithm={"preset": "online_dpo", "dpoBeta": 0.5}).algorithm
    terms = LOSSES["dpo"](batch(log_probs, reference, [(2, 1), (1, 1)], trajectories=[2, 4]), settings)
    first, second = math.log(1 + math.exp(-1)), math.log(1 + math.e)
    assert terms.per_token.tolist() == pytest.approx([first] * 3 + [second / 2] * 2)
    terms.per_token[[0, 3]].sum().backward()
    slopes = 0.5 / (1 + math.e), 0.25 / (1 + math.exp(-1))
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-slopes[0], -slopes[0], slopes[0], -slopes[1], slopes[1]])
    assert terms.preference is not None
    found = PreferenceSums(*terms.preference.tolist()).metrics()
    assert list(found.values()) == pytest.approx([0.25, 0.25, 0.0, 0.5, -2.5, -1.5])


def test_dpo_is_that_of_dpo_trainer(trl: ModuleType, tmp_path: Path):
    from datasets import Dataset

    tiny_model(seed=0).save_pretrained(tmp_path)  # type: ignore[operator]
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=3, beta=0.3, report_to=[], use_cpu=True, bf16=False
    )
    data = Dataset.from_dict({"prompt": ["a b"] * 3, "chosen": ["c d"] * 3, "rejected": ["e"] * 3})
    theirs = trl.DPOTrainer(str(tmp_path), args=arguments, train_dataset=data, processing_class=letters())
    theirs.ref_model.load_state_dict(tiny_model(seed=1).state_dict())
    theirs.model.eval()
    generator = torch.Generator().manual_seed(5)
    tokens, lengths = torch.randint(2, 12, (6, 10), generator=generator), torch.tensor([8, 3, 5, 2, 8, 4])
    rollout = Rollout(tokens[:, :2], tokens[:, 2:], lengths)
    ones = torch.ones_like(rollout.prompts)
    expected = theirs.compute_loss(
        theirs.model,
        {
            "input_ids": tokens,
            "attention_mask": torch.cat([ones, rollout.mask], dim=1),
            "completion_mask": torch.cat([0 * ones, rollout.mask], dim=1),
        },
    )
    expected.backward()

    ours = tiny_model(seed=0)
    (log_probs, _), (reference, _) = (rollout.log_probs_and_logits(model) for model in (ours, tiny_model(seed=1)))
    order = [0, 3, 1, 4, 2, 5]  # TRL's batch is all preferred responses, then all rejected ones
    log_probs, reference = (
        torch.cat([each.split(lengths.tolist())[i] for i in order]) for each in (log_probs, reference.detach())
    )
    settings = make_spec(algorithm={"preset": "online_dpo", "dpoBeta": 0.3}).algorithm
    sizes = lengths[order]
    terms = LOSSES["dpo"](batch(log_probs, reference, sizes.view(3, 2).tolist()), settings)
    weights = token_weights("sequence_mean", sizes, BatchTotals(int(sizes.sum()), 6), 8)
    loss = (weights * terms.per_token).sum()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    assert_same_gradients(ours, theirs.model)
    assert terms.preference is not None
    found = PreferenceSums(*terms.preference.tolist()).metrics()
    assert found == {name: pytest.approx(theirs._metrics["eval"][name][0], rel=1e-4) for name in PREFERENCE}


def test_sppo_by_hand_and_as_verls_formula():
    # Sequence 1: log r = 0.5 - 0.25, eta A = 2 x 0.5: (0.25 - 1)^2. Sequence 2: (1 - 2 x -0.25)^2. Both as verl's
    # (log_prob_sum - old_log_prob_sum - eta * rewards)**2, whose gradient by each token is twice the distance.
    log_probs = torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.5, -0.75, -3.0], dtype=torch.float64)
    lengths, advantages = torch.tensor([2, 1]), torch.tensor([0.5, 0.5, -0.25], dtype=torch.float64)
    settings = make_spec(algorithm={"preset": "sppo", "sppoEta": 2}).algorithm
    terms = LOSSES["sppo"](PolicyBatch(log_probs, advantages, old, lengths=lengths), settings)
    assert terms.per_token.tolist() == [0.5625, 0.5625, 2.25]
    (token_weights("sequence_mean", lengths, BatchTotals(3, 2), 8) * terms.per_token).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([-0.75, -0.75, 1.5])


def test_win_rates_count_ties_as_halves():
    given = AdvantageBatch(np.array([3, 1, 1, 7], np.float32), np.array([0, 0, 0, 1]), np.array([2, 1, 1, 1]))
    assert ADVANTAGES["win_rate"](given).tolist() == [0.5, 0.5, -0.25, -0.25, 0.0]


def test_only_the_best_and_the_worst_of_a_group_make_a_pair():
    given = AdvantageBatch(
        np.array([1, 3, 3, 2, 5, 5, 0, 9, 1], np.float32), np.array([0, 0, 0, 0, 1, 1, 1, 2, 2]),
        np.array([1, 2, 1, 1, 1, 1, 0, 1, 1]),
    )  # fmt: skip
    # Group 1 has equal rewards once the episode without tokens is left out.
    assert ADVANTAGES["best_worst"](given).tolist() == [-1, 1, 1, 0, 0, 0, 0, 1, -1]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The reference, and the policy close to it."""
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / "start", "tied"), write_model(folder / "moved", "tied", noise=0.02)


def moved(worker, models, stage):
    worker.load(models[0])
    worker.begin_stage(stage)
    worker.folder = Path(models[1])
    load_initial_weights(worker.policy.module, worker.spec, worker.folder, worker.mesh)
    return record_gradients(worker)


def offline(worker, models, budget):
    """Of the rows as pairs: the gradient of the step, and its sums."""
    gradients = moved(worker, models, "sft")
    spec = worker.spec.model_copy(
        update={"actor": worker.spec.actor.model_copy(update={"tokens_per_micro_batch": budget})}
    )
    made = batch_of_rows(ROWS, spec)
    updated = worker.supervised_step(made.plans[worker.settings.rank], made.totals, ROWS, 1e-3, MARK)
    return gradients[0], updated.sums


def online(worker, models, budget):
    """The same pairs as groups, each with a further episode that is neither best nor worst."""
    gradients = moved(worker, models, "rl")
    spec = worker.spec.model_copy(
        update={"actor": worker.spec.actor.model_copy(update={"tokens_per_micro_batch": budget})}
    )
    groups = [group_of(index) for index in range(5)]
    summaries = [summary_of(group) for group in groups]
    made = batch_of_groups(summaries, spec)
    rank = worker.settings.rank
    worker.prepare(made.plans[rank], made.totals, [(0, index) for index in range(5)], groups)
    updated = worker.update(advantages(summaries, made, None, spec)[rank], 1e-3, 0.0, MARK)
    return gradients[0], updated.sums


def group_of(index: int) -> Group:
    rewards = {2 * index + 1: 0.0, (2 * index + 7) % 10: 0.5, 2 * index: 1.0}
    task = Task(f"0/{index}/0", [], ROWS[0].token_ids[:1], "", {}, "")
    episodes = [Episode(task.id, i, (ROWS[row],), reward=rewards[row]) for i, row in enumerate(rewards)]
    return Group(task, tuple(episodes))


def summary_of(group: Group) -> GroupSummary:
    rows = [episode.trajectories[0] for episode in group.episodes]
    rewards = np.array([episode.reward for episode in group.episodes], np.float32)
    tokens, in_loss = (len(each.token_ids) for each in rows), (each.loss_tokens for each in rows)
    return GroupSummary(group.task.id, rewards, {}, (0, 1, 2), tuple(tokens), tuple(in_loss), 1, (False,) * 3, 1, "")


@pytest.mark.parametrize(("preset", "task"), [("dpo", offline), ("online_dpo", online)])
def test_the_gradient_depends_neither_on_ranks_nor_on_micro_batches(models, two_ranks, preset, task):
    blocks = {"algorithm": {"preset": preset}, "actor": ROOMY}
    blocks |= {"rewards": {}} if preset == "dpo" else {}
    expected, sums = alone(
        make_spec(1, **{**blocks, "algorithm": {"preset": "dpo"}, "rewards": {}}), offline, models, 4096
    )
    assert sums.preference.pairs == 5
    assert sums.loss > 0.1
    for results in (
        [alone(make_spec(1, **blocks), task, models, 1)],
        two_ranks.run(make_spec(2, **blocks), task, models, 4096),
        two_ranks.run(make_spec(2, **blocks), task, models, 40),
    ):
        assert all(largest_difference(gradient, expected) < 2e-5 for gradient, _ in results)
        again = sum((each.preference for _, each in results), start=PreferenceSums())
        assert again.metrics() == pytest.approx(sums.preference.metrics(), rel=1e-4, abs=1e-6)
        assert sum(each.loss for _, each in results) == pytest.approx(sums.loss, rel=1e-4)


def test_units_stay_together():
    lengths = [5, 5, 1, 1, 3, 3, 2, 2]
    plans = plan_units(lengths, [[(1, 0), (2, 3)], [(4, 5), (6, 7)]], ranks=2, token_budget=6)
    passes = [part for plan in plans for minibatch in plan.minibatches for part in minibatch]
    assert sorted(passes) == [(1, 0), (2, 3), (4, 5), (6, 7)]


def test_a_step_whose_groups_all_tie_makes_no_pair():
    from rljob_trainer.loop.metrics import update_metrics
    from rljob_trainer.rank.results import StepSums, Updated

    spec = make_spec(2, algorithm={"preset": "online_dpo"}, actor={"tokensPerMicroBatch": 4096})
    tied = GroupSummary("0/0/0", np.ones(2, np.float32), {}, (0, 1), (4, 4), (2, 2), 2, (False,) * 2, 4, "digest")
    made = batch_of_groups([tied, tied], spec)
    assert (made.pairs, [plan.samples for plan in made.plans]) == (0, [[], []])
    assert [each.tolist() for each in made.of_each(advantages([tied, tied], made, None, spec))] == [[0.0] * 2] * 4
    empty = StepSums(0.0, 0.0, 0.0, 0.0, 0, [0.0], minibatches=1)
    assert not set(PREFERENCE) & set(update_metrics([Updated(empty)] * 2, 1e-3, kl_in_loss=False))


def test_a_row_s_own_response_says_nothing_of_the_engine():
    """An engine that agrees with the trainer on what it sampled; it gave the row's response no probability."""
    prompt, ours = np.array([3, 4], np.int32), np.array([-1.0, -2.0], np.float32)
    task = Task("0/0/0", [], prompt, "", {}, "", response=np.array([5, 6], np.int32))
    episode = Episode(task.id, 0, (answered(prompt, prompt, ours, 4, 0.7, "stop"),), reward=0.0)
    own = Group(task, (episode,)).with_response().trajectories
    assert [each.sampled for each in own] == [True, False]
    samples = {i: ShardSample(each, each.log_probs[2:], ours) for i, each in enumerate(own)}
    shard = Shard(RankPlan((((0, 1),),)), (), samples)
    found, spec = _importance(shard, 4, bypass=False), make_spec(algorithm={"preset": "spin"}, rewards={})
    assert (found.count, found.present, found.finish().effective_sample_size) == (2, 2, pytest.approx(1.0))
    metrics = reported(correction_of(shard.ordered, spec.algorithm.rollout_correction))
    assert (metrics["rollout_corr/kl"], metrics["rollout_corr/ppl_ratio"]) == (0, 1)
