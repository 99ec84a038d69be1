"""The critic on ranks: values, its optimizer steps, its part of checkpoints, and where its first weights come from."""

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from rljob_trainer.errors import DataError, InfrastructureError
from rljob_trainer.lora.source import with_adapter
from rljob_trainer.rank.results import LARGEST_NORM, CriticOrder
from rljob_trainer.rank.supported import check_critic
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.lora_support import lora_spec, write_adapter
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    answers_to_prompts,
    bundle_of,
    parameters,
    plans_of,
    random_advantages,
    random_trajectories,
    several_turns,
    whole,
    write_model,
)

TRAJECTORIES = [
    *random_trajectories(4, seed=3),
    *answers_to_prompts(prompts=1, samples=3),
    several_turns([(3, 5), (6, 9), (12, 13)], tokens=15, seed=3),
]
ADVANTAGES, RETURNS = random_advantages(TRAJECTORIES, seed=3), random_advantages(TRAJECTORIES, seed=4)
RATE = 1e-3


def ppo(ranks=1, **critic):
    return make_spec(ranks, algorithm={"preset": "ppo"}, critic={"clipRange": 0.05, **critic})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "tied")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A folder of a token classifier with one label, whose head is not 0."""
    made = tmp_path_factory.mktemp("classifier")
    config = AutoConfig.from_pretrained(write_model(made), num_labels=1)
    torch.manual_seed(5)
    AutoModelForTokenClassification.from_config(config).save_pretrained(made)
    return str(made)


def begin(worker, folder, own=None):
    worker.load(folder, own)
    worker.begin_stage("rl")


def step(worker, minibatches=1, budget=50, alone=False, bound=LARGEST_NORM):
    """One training step with its values; returns those of each own trajectory, and what the update says."""
    rank, world = worker.settings.rank, worker.settings.world
    plans, totals = plans_of(TRAJECTORIES, world, budget, minibatches)
    own = plans[rank].samples
    worker.prepare(plans[rank], totals, *bundle_of(TRAJECTORIES))
    values = worker.values()
    order = CriticOrder(plans[rank], totals, [RETURNS[index] for index in own], RATE, bound, alone)
    updated = worker.update([ADVANTAGES[index] for index in own], RATE, 0.0, MARK, critic=order)
    return dict(zip(own, values, strict=True)), updated


def weights(worker):
    """The critic's, whole; collective."""
    return {name: whole(parameter) for name, parameter in worker.critic.module.named_parameters()}


# ---------------------------------------------------------------------- one step


def steps_with_own_model(worker, folder, own, minibatches):
    begin(worker, folder, own)
    values, updated = step(worker, minibatches)
    return values, updated.critic, weights(worker)


def test_values_and_steps_are_those_of_a_token_classifier(folder, classifier):
    """Of transformers, in rows of their own, with AdamW of torch and PPO's value loss written out."""
    values, sums, trained = alone(ppo(epochs=2), steps_with_own_model, folder, classifier, 2)
    model = AutoModelForTokenClassification.from_pretrained(classifier, attn_implementation="eager").eval()

    def values_of(trajectory):
        states = model(input_ids=torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]).logits[0, :, 0]
        return states[torch.from_numpy(np.flatnonzero(trajectory.in_loss) - 1)]

    with torch.no_grad():
        before = [values_of(each) for each in TRAJECTORIES]
    for index, each in values.items():
        np.testing.assert_allclose(each, before[index].numpy(), rtol=0, atol=1e-6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    losses, clipped = [], 0
    for part in [range(4), range(4, 8)] * 2:
        error, tokens = torch.zeros(()), sum(TRAJECTORIES[index].loss_tokens for index in part)
        for index in part:
            now, old, returns = values_of(TRAJECTORIES[index]), before[index], torch.from_numpy(RETURNS[index])
            own, bounded = (now - returns) ** 2, (torch.clamp(now, old - 0.05, old + 0.05) - returns) ** 2
            error = error + torch.max(own, bounded).sum() / 2
            clipped += int((bounded > own).sum())
        optimizer.zero_grad()
        (error / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(float(error.detach() / tokens))
    assert sums.loss == pytest.approx(sum(losses), rel=1e-4)
    assert (sums.clipped, sums.minibatches) == (clipped, 4)
    assert clipped > 0
    theirs = dict(model.named_parameters())
    for name, each in trained.items():
        expected = theirs[name.removeprefix("model.").replace("head.", "score.")]
        torch.testing.assert_close(each, expected.detach(), rtol=0, atol=RATE / 50)


def test_a_critic_begins_as_the_policy_and_says_0(folder):
    values, ours, theirs = alone(ppo(), first_values, folder)
    assert all((each == 0).all() for each in values.values())
    assert all(torch.equal(each, theirs[name]) for name, each in ours.items() if name in theirs)
    assert ours.keys() - theirs.keys() == {"head.weight", "head.bias"}


def first_values(worker, folder):
    begin(worker, folder)
    ours = weights(worker)
    values, _ = step(worker)
    policy = alone_parameters(folder)
    return values, ours, policy


def alone_parameters(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    return {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}


def test_in_its_warm_up_the_critic_learns_alone(folder):
    before, after, moved, updated = alone(ppo(warmupSteps=1), warm_up, folder)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert moved
    assert (updated.sums.minibatches, updated.critic.minibatches) == (0, 1)
    assert updated.importance.count == sum(each.loss_tokens for each in TRAJECTORIES), "the drift is still measured"


def warm_up(worker, folder):
    begin(worker, folder)
    before, critic = parameters(worker), weights(worker)
    _, updated = step(worker, alone=True)
    moved = any(not torch.equal(each, critic[name]) for name, each in weights(worker).items())
    return before, parameters(worker), moved, updated


def test_a_step_of_too_large_a_gradient_is_left_out(folder):
    before, after, sums = alone(ppo(), skipped_step, folder)
    assert len(sums.skipped) == 1
    assert sums.grad_norms == []
    assert all(torch.equal(before[name], after[name]) for name in before)


def skipped_step(worker, folder):
    begin(worker, folder)
    before = weights(worker)
    _, updated = step(worker, bound=1e-6)
    return before, weights(worker), updated.critic


def test_values_of_nothing_are_refused(folder):
    with pytest.raises(InfrastructureError, match="no groups are prepared"):
        alone(ppo(), lambda worker: (begin(worker, folder), worker.values()))


# ---------------------------------------------------------------------- beside an adapter


def beside_adapter(worker, folder):
    """The critic as it begins, and what one step changes."""
    begin(worker, folder)
    first, policy = weights(worker), parameters(worker)
    step(worker)
    changed = {name for name, each in parameters(worker).items() if not torch.equal(each, policy[name])}
    return first, changed, {name for name, each in weights(worker).items() if not torch.equal(each, first[name])}


@pytest.mark.parametrize("ranks", [1, 2])
def test_beside_an_adapter_the_critic_is_whole_and_begins_with_what_the_adapter_adds(
    tmp_path, folder, two_ranks, ranks
):
    expected = write_adapter(folder, tmp_path).merge_and_unload().state_dict()
    spec = lora_spec(ranks, lora={"path": str(tmp_path)}, algorithm={"preset": "ppo"})
    spec = with_adapter(spec, tmp_path)
    found = alone(spec, beside_adapter, folder) if ranks == 1 else two_ranks.run(spec, beside_adapter, folder)[0]
    critic, of_policy, of_critic = found
    for name, each in critic.items():
        if not name.startswith("head."):
            torch.testing.assert_close(each, expected[name.removeprefix("model.")], rtol=0, atol=1e-6)
    assert of_policy
    assert all(".lora_" in name for name in of_policy)
    assert of_critic == critic.keys()


LORA = {"rank": 4, "targetModules": ["q_proj", "down_proj"]}


def steps_with_adapter(worker, folder):
    """The critic as it begins, and after three steps: the first moves the head alone, the second B, the third A."""
    begin(worker, folder)
    first = weights(worker)
    for _ in range(3):
        step(worker)
    return first, weights(worker), {name for name, each in parameters(worker).items() if ".lora_" in name}


def test_an_adapter_of_the_critic_is_trained_as_peft_trains_it(folder):
    """With a head of values, whose loss is written out; the policy is whole."""
    first, trained, of_policy = alone(ppo(lora=LORA), steps_with_adapter, folder)
    assert not of_policy
    moved = {name for name, each in trained.items() if not torch.equal(each, first[name])}
    assert moved == {name for name in first if ".lora_" in name or name.startswith("head.")}
    config = LoraConfig(r=4, lora_alpha=4, target_modules=["q_proj", "down_proj"])
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    model, head = get_peft_model(base, config), torch.nn.Linear(base.config.hidden_size, 1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(first[ours(name)])
    learning = [*(each for each in model.parameters() if each.requires_grad), *head.parameters()]
    optimizer = torch.optim.AdamW(learning, lr=RATE, weight_decay=0.01)
    tokens = sum(each.loss_tokens for each in TRAJECTORIES)
    for _ in range(3):
        values = [head(states_of(model, each))[:, 0] for each in TRAJECTORIES]
        errors = [(now - torch.from_numpy(to)).square().sum() for now, to in zip(values, RETURNS, strict=True)]
        optimizer.zero_grad()
        (sum(errors) / 2 / tokens).backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
    theirs = {ours(name): each for name, each in model.named_parameters() if ".lora_" in name}
    for name, each in (theirs | {f"head.{name}": each for name, each in head.named_parameters()}).items():
        torch.testing.assert_close(trained[name], each.detach(), rtol=0, atol=RATE / 20, msg=name)


def ours(name):
    return name.removeprefix("base_model.").replace(".default", "")


def states_of(model, trajectory):
    ids = torch.from_numpy(trajectory.token_ids.astype(np.int64))[None]
    states = model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0]
    return states[torch.from_numpy(np.flatnonzero(trajectory.in_loss) - 1)]


# ---------------------------------------------------------------------- ranks and checkpoints


def train_and_save(worker, folder, directory):
    """Returns the critic after each of two steps, with a checkpoint between them."""
    begin(worker, folder)
    step(worker, minibatches=2)
    saved = weights(worker)
    worker.begin_save(directory)
    worker.finish_save()
    step(worker, minibatches=2)
    return saved, weights(worker)


def restore_and_train(worker, folder, directory):
    begin(worker, folder)
    worker.restore(directory)
    restored = weights(worker)
    values, _ = step(worker, minibatches=2)
    return restored, weights(worker), values


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapter"])
@pytest.mark.parametrize("writers", [1, 2])
def test_a_critic_is_restored_by_any_number_of_ranks(tmp_path, folder, two_ranks, writers, lora):
    directory = str(tmp_path / "ranks")

    def run(ranks, task):
        if ranks == 1:
            return alone(ppo(1, lora=lora), task, folder, directory)
        return two_ranks.run(ppo(2, lora=lora), task, folder, directory)[0]

    saved, later = run(writers, train_and_save)
    for readers in (1, 2):
        restored, trained, _ = run(readers, restore_and_train)
        torch.testing.assert_close(restored, saved, rtol=0, atol=0)
        exact = readers == writers
        torch.testing.assert_close(trained, later, rtol=0, atol=0 if exact else RATE / 50)


def first_step(worker, folder, own, budget):
    begin(worker, folder, own)
    values, updated = step(worker, budget=budget)
    return values, updated.critic, weights(worker)


def test_neither_ranks_nor_micro_batches_change_a_step(folder, classifier, two_ranks):
    values, sums, trained = alone(ppo(1), first_step, folder, classifier, 10_000)
    for found in (
        [alone(ppo(1), first_step, folder, classifier, 20)],
        two_ranks.run(ppo(2), first_step, folder, classifier, 20),
    ):
        parts = [part for _, part, _ in found]
        assert sum(part.loss for part in parts) == pytest.approx(sums.loss, rel=1e-5)
        assert sum(part.tokens for part in parts) == sums.tokens
        assert parts[0].grad_norms == pytest.approx(sums.grad_norms, rel=1e-4)
        theirs = {index: each for own, *_ in found for index, each in own.items()}
        for index, each in values.items():
            np.testing.assert_allclose(theirs[index], each, rtol=0, atol=1e-5)
        torch.testing.assert_close(found[0][2], trained, rtol=0, atol=RATE / 20)


# ---------------------------------------------------------------------- a model of its own


def test_a_language_model_of_its_own_begins_with_values_of_0(tmp_path, folder):
    other = write_model(tmp_path, "llama", seed=9)
    values, critic = alone(ppo(), own_model, folder, other)
    assert all((each == 0).all() for each in values.values())
    theirs = alone_parameters(other)
    assert all(torch.equal(each, theirs[name]) for name, each in critic.items() if name in theirs)


def own_model(worker, folder, own):
    begin(worker, folder, own)
    critic = weights(worker)
    return step(worker)[0], critic


def test_a_classifier_with_several_labels_is_refused(tmp_path, folder):
    config = AutoConfig.from_pretrained(write_model(tmp_path), num_labels=2)
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"^spec\.critic\.model: .* has no linear head with one value"):
        alone(ppo(), begin, folder, str(tmp_path))


def test_weights_that_are_not_all_there_are_refused(tmp_path, folder):
    write_model(tmp_path)
    AutoConfig.from_pretrained(tmp_path, num_hidden_layers=3, layer_types=["full_attention"] * 3).save_pretrained(
        tmp_path
    )
    with pytest.raises(DataError, match=r"^spec\.critic\.model: its weights lack model\.layers\.2"):
        alone(ppo(), begin, folder, str(tmp_path))


@pytest.mark.parametrize(
    ("largest", "longest", "problem"), [(97, 16, "embeddings have 97 rows"), (96, 900, "context has 128")]
)
def test_a_critic_must_read_what_the_policy_reads(tmp_path, largest, longest, problem):
    spec = make_spec(
        algorithm={"preset": "ppo"}, data={"train": ["r"], "maxPromptTokens": 32, "maxResponseTokens": longest}
    )
    with pytest.raises(DataError, match=rf"^spec\.critic\.model: its {problem}"):
        check_critic(spec, Path(write_model(tmp_path)), largest)
