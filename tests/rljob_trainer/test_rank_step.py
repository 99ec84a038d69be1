"""Optimizer steps against plain PyTorch and transformers: padded batches, an unsharded model, formulas written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, OpenAIGPTConfig

from rljob_trainer.errors import InfrastructureError, JobError
from rljob_trainer.losses.diagnostics import ImportanceSums
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank import compiling
from rljob_trainer.rank.recomputing import recompute
from rljob_trainer.rank.results import LARGEST_NORM
from rljob_trainer.types import Trajectory
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
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
    *random_trajectories(6, seed=3, temperature=0.7),
    several_turns([(3, 5), (6, 9), (12, 13)], tokens=15, seed=3, temperatures=[0.7] * 3),
    several_turns([(1, 2), (7, 12)], tokens=12, seed=4, temperatures=[0.7] * 2),
]
"""The last two have tool results between their turns."""
ROWS = [replace(each, turns=()) for each in TRAJECTORIES]
ADVANTAGES = random_advantages(TRAJECTORIES, seed=3)
RATE = 3e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "llama")


def padded(trajectories):
    """input_ids, attention_mask and response_mask [n, T], padded on the right."""
    longest = max(len(each.token_ids) for each in trajectories)
    ids, attention, response = (np.zeros((len(trajectories), longest), np.int64) for _ in range(3))
    for row, each in enumerate(trajectories):
        ids[row, : len(each.token_ids)] = each.token_ids
        attention[row, : len(each.token_ids)] = 1
        response[row, : len(each.token_ids)] = each.in_loss
    return tuple(torch.from_numpy(array) for array in (ids, attention, response))


def adamw(model, spec):
    actor = spec.actor
    return torch.optim.AdamW(
        model.parameters(), lr=RATE, betas=(actor.beta1, actor.beta2), weight_decay=actor.weight_decay
    )


def test_one_grpo_step_equals_plain_pytorch(folder):
    """Two minibatches, clipping, KL in the loss, gradient clipping, AdamW: the parameters agree afterwards."""
    spec = make_spec(actor={"gradClip": 0.05, "weightDecay": 0.1})
    ours, sums = alone(spec, grpo_step, folder)
    theirs, losses, norms = plain_grpo_step(folder, spec)
    assert sums.loss == pytest.approx(sum(losses), rel=1e-4)
    assert sums.grad_norms == pytest.approx(norms, rel=1e-4)
    assert min(norms) > 0.05
    start = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    for name, parameter in theirs.items():
        assert (parameter - start[name]).abs().max() > RATE
        torch.testing.assert_close(ours[name], parameter, rtol=0, atol=RATE / 100)


def grpo_step(worker, folder):
    plans, totals = plans_of(TRAJECTORIES, 1, 50, minibatches=2)
    worker.load(folder)
    worker.begin_stage("rl")
    worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
    updated = worker.update([ADVANTAGES[index] for index in plans[0].samples], RATE, 0.04, MARK)
    return parameters(worker), updated.sums


def plain_grpo_step(folder, spec):
    """Shao et al. 2024, equations 3 and 4, with one sum for each response."""
    model, frozen = (AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa") for _ in range(2))
    optimizer = adamw(model, spec)

    def log_probs_of(network, ids, attention):
        logits = network(input_ids=ids, attention_mask=attention).logits[:, :-1] / 0.7
        return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]

    losses, norms = [], []
    for part in (slice(0, 4), slice(4, 8)):
        ids, attention, response = padded(TRAJECTORIES[part])
        mask = response[:, 1:].bool()
        with torch.no_grad():
            old = log_probs_of(frozen, ids, attention)
        advantages = torch.zeros(mask.shape)
        advantages[mask] = torch.from_numpy(np.concatenate(ADVANTAGES[part]))
        new = log_probs_of(model, ids, attention)
        ratio = torch.exp(new - old)
        surrogate = torch.min(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
        divergence = torch.exp(old - new) - (old - new) - 1  # the reference is the policy before the step
        objective = surrogate - 0.04 * divergence
        loss = -sum(objective[row][mask[row]].mean() for row in range(4)) / 4
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
        optimizer.step()
        losses.append(loss.item())
    return {name: parameter.detach() for name, parameter in model.named_parameters()}, losses, norms


def test_a_supervised_step_is_transformers_own_loss(folder):
    gradients, sums = alone(make_spec(actor={"gradClip": 1e6}), supervised, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids, attention, response = padded(TRAJECTORIES)
    loss = model(input_ids=ids, attention_mask=attention, labels=ids.masked_fill(response == 0, -100)).loss
    loss.backward()
    assert sums.loss == pytest.approx(loss.item(), rel=1e-5)
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert largest_difference(gradients, theirs) < 2e-5


def supervised(worker, folder):
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("sft")
    gradients = record_gradients(worker)
    sums = worker.supervised_step(plans[0], totals, ROWS, RATE, MARK).sums
    return gradients[0], sums


def test_clipping_scales_the_gradient_to_the_norm(folder):
    whole, sums = alone(make_spec(actor={"gradClip": 1e6}), supervised, folder)
    clipped, _ = alone(make_spec(actor={"gradClip": 0.5}), supervised, folder)
    norm = torch.cat([gradient.flatten() for gradient in whole.values()]).norm().item()
    assert sums.grad_norms == pytest.approx([norm], rel=1e-5)
    assert torch.cat([gradient.flatten() for gradient in clipped.values()]).norm().item() == pytest.approx(
        0.5, rel=1e-4
    )


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_recomputing_activations_changes_no_gradient(folder, kind):
    kept, recomputed, offloaded = (
        alone(make_spec(actor={"recompute": how, "gradClip": 1e6}), first_gradient, folder, kind)
        for how in ("none", "layer", "offload")
    )
    assert largest_difference(recomputed, kept) < 1e-6
    assert largest_difference(offloaded, recomputed) == 0


def test_layers_that_cannot_be_computed_again_keep_their_activations_unless_the_job_asks():
    model = AutoModelForCausalLM.from_config(OpenAIGPTConfig(n_embd=8, n_layer=1, n_head=1, vocab_size=8))
    recompute(model, None)
    with pytest.raises(JobError, match="openai-gpt again: set it to none") as raised:
        recompute(model, "layer")
    assert raised.value.field == "spec.actor.recompute"


@pytest.mark.slow
def test_compiled_layers_change_no_gradient_and_compile_once_for_all_lengths(folder, monkeypatch):
    """Traced and differentiated as on a GPU; what was traced then runs in PyTorch, for inductor takes a minute here."""
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    compiled, plain = (
        alone(make_spec(actor={"compile": on, "gradClip": 1e6}), first_gradient, folder, "rl") for on in (True, False)
    )
    assert largest_difference(compiled, plain) < 1e-5
    before = compiling.compiled_graphs()
    assert before > 0
    alone(make_spec(actor={"compile": True}), gradients_of_other_lengths, folder)
    assert compiling.compiled_graphs() - before < 2 * before  # a new model, and one more shape at most


def gradients_of_other_lengths(worker, folder):
    worker.load(folder)
    worker.begin_stage("sft")
    for count in range(2, 8):
        rows = random_trajectories(count, seed=count)
        plans, totals = plans_of(rows, 1, 30)
        worker.supervised_step(plans[0], totals, [replace(each, turns=()) for each in rows], RATE, MARK)


def first_gradient(worker, folder, kind):
    if kind == "sft":
        return supervised(worker, folder)[0]
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
    gradients = record_gradients(worker)
    worker.update([ADVANTAGES[index] for index in plans[0].samples], RATE, 0.04, MARK)
    return gradients[0]


def test_no_update_is_made_of_a_gradient_that_is_not_finite(folder):
    before, after, sums = alone(make_spec(), step_with_infinite_advantage, folder)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (sums.grad_norms, sums.minibatches) == ([], 1)
    assert not np.isfinite(sums.skipped).any()


def test_no_update_is_made_of_a_gradient_that_is_too_large(folder):
    norms, skipped, changed = alone(make_spec(actor={"epochs": 3}), steps_with_a_bound, folder)
    assert len(norms) == 3
    assert skipped == [pytest.approx(norms[0], rel=1e-5)] * 3
    assert not changed


def steps_with_a_bound(worker, folder):
    """Norms without a bound; then those skipped with a bound below the first, and whether the weights changed."""
    free, _, _ = updates_within(worker, folder, LARGEST_NORM)
    tight, before, after = updates_within(worker, folder, 0.999 * free.grad_norms[0])
    return free.grad_norms, tight.skipped, any(not torch.equal(before[name], after[name]) for name in before)


def updates_within(worker, folder, bound):
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
    before = parameters(worker)
    sums = worker.update([ADVANTAGES[index] for index in plans[0].samples], RATE, 0.04, MARK, bound).sums
    return sums, before, parameters(worker)


def step_with_infinite_advantage(worker, folder):
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES))
    before = parameters(worker)
    advantages = [np.full_like(ADVANTAGES[index], np.inf) for index in plans[0].samples]
    sums = worker.update(advantages, RATE, 0.04, MARK).sums
    with pytest.raises(InfrastructureError, match="no groups are prepared"):  # those of before are used up
        worker.update(advantages, RATE, 0.04, MARK)
    return before, parameters(worker), sums


# ---------------------------------------------------------------------- what a step says about itself


def test_an_engine_that_agrees_has_an_effective_sample_size_of_one(folder):
    same, other = alone(make_spec(), importance, folder)
    same, other = same.finish(), other.finish()
    assert same.max_difference < 1e-5
    assert same.effective_sample_size == pytest.approx(1.0, abs=1e-6)
    assert other.mean_difference == pytest.approx(0.25, abs=1e-5)


def importance(worker, folder) -> tuple[ImportanceSums, ImportanceSums]:
    """Against an engine that computes what the trainer does, and against one that is 0.25 nats off everywhere."""
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    found = []
    for offset in (0.0, 0.25):
        sampled = [
            by_engine(each, log_probs - np.float32(offset))
            for each, log_probs in zip(TRAJECTORIES, worker.log_probs(TRAJECTORIES), strict=True)
        ]
        worker.prepare(plans[0], totals, *bundle_of(sampled))
        found.append(worker.update([ADVANTAGES[index] for index in plans[0].samples], 0.0, 0.0, MARK).importance)
    return found[0], found[1]


def by_engine(trajectory: Trajectory, log_probs) -> Trajectory:
    every = np.zeros(len(trajectory.token_ids), np.float32)
    every[trajectory.in_loss] = log_probs
    return replace(trajectory, log_probs=every)


def test_the_reference_stays_where_rl_began(folder):
    first, later, placement = alone(make_spec(algorithm={"kl": {"placement": "reward"}}), token_kl, folder)
    assert max(np.abs(kl).max() for kl in first) < 1e-6
    assert max(np.abs(kl).max() for kl in later) > 0.01
    assert [len(kl) for kl in later] == placement


def token_kl(worker, folder):
    """KL of each token before and after an update, and the lengths that the plan asks for."""
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    found = []
    for _ in range(2):
        found.append(worker.prepare(plans[0], totals, *bundle_of(TRAJECTORIES)).kl)
        worker.update([ADVANTAGES[index] for index in plans[0].samples], RATE, 0.0, MARK)
    return *found, [TRAJECTORIES[index].loss_tokens for index in plans[0].samples]


def test_without_kl_there_is_no_reference(folder):
    assert alone(make_spec(algorithm={"preset": "dapo"}), reference_of, folder) is None


def reference_of(worker, folder):
    worker.load(folder)
    worker.begin_stage("rl")
    return worker.reference


def test_on_a_cpu_bfloat16_computes_with_float32_masters(folder):
    spec = make_spec(model={"path": folder, "dtype": "bfloat16"})
    found = alone(spec, half_precision, folder)
    assert found["master"] == {torch.float32}
    assert found["reference"] == {torch.bfloat16}
    precise = alone(make_spec(), lambda worker: (worker.load(folder), worker.log_probs(TRAJECTORIES))[1])
    gaps = np.abs(np.concatenate(found["log_probs"]) - np.concatenate(precise))
    assert 0 < gaps.mean() < 0.03
    assert found["moved"] == pytest.approx(1e-6, rel=0.2)  # far below bfloat16's step of 2^-8


def half_precision(worker, folder):
    plans, totals = plans_of(TRAJECTORIES, 1, 50)
    worker.load(folder)
    worker.begin_stage("rl")
    log_probs = worker.log_probs(TRAJECTORIES)
    before = parameters(worker)["model.norm.weight"]
    worker.supervised_step(plans[0], totals, TRAJECTORIES, 1e-6, MARK)
    return {
        "master": {parameter.dtype for parameter in worker.policy.module.parameters()},
        "reference": {parameter.dtype for parameter in worker.reference.role.module.parameters()},
        "log_probs": log_probs,
        "moved": (parameters(worker)["model.norm.weight"] - before).abs().median().item(),
    }


def test_totals_reach_beyond_what_a_rank_holds(folder):
    """A minibatch of which this rank holds one sample: its loss is that sample's share."""
    share, full = alone(make_spec(), losses_with_totals, folder, TRAJECTORIES[:1])
    assert share == pytest.approx(full / 10)


def losses_with_totals(worker, folder, rows):
    plans, totals = plans_of(rows, 1, 50)
    worker.load(folder)
    worker.begin_stage("sft")
    larger = [BatchTotals(10 * totals[0].tokens, 10)]
    return [worker.supervised_step(plans[0], each, rows, 0.0, MARK).sums.loss for each in (larger, totals)]
