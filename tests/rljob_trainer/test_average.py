"""The average of the policy: what it is after steps, on any number of ranks, and in validations and exports."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_trainer.checkpoint.export import export_model
from rljob_trainer.checkpoint.manifest import MODEL, RANKS, commit
from rljob_trainer.errors import DataError
from rljob_trainer.volume import Volume
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import (
    MARK,
    alone,
    bundle_of,
    parameters,
    plans_of,
    random_advantages,
    random_trajectories,
    whole,
    write_model,
)
from tests.rljob_trainer.rollout_support import write_model_dir

TRAJECTORIES = random_trajectories(6, seed=3)
ADVANTAGES = random_advantages(TRAJECTORIES, seed=3)
DECAY = 0.75


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "tied")


def averaging(ranks=1, decay=DECAY):
    return make_spec(ranks, actor={"emaDecay": decay})


def begin(worker, folder):
    worker.load(folder)
    worker.begin_stage("rl")
    worker.hold(MARK)


def step(worker):
    plans, totals = plans_of(TRAJECTORIES, worker.settings.world, 50)
    plan = plans[worker.settings.rank]
    worker.prepare(plan, totals, *bundle_of(TRAJECTORIES))
    worker.update([ADVANTAGES[index] for index in plan.samples], 1e-2, 0.0, MARK)


def averaged(worker):
    """Under the policy's names; collective."""
    return {name: whole(each) for name, each in worker.average.role.network.state_dict().items()}


def two_steps(worker, folder):
    begin(worker, folder)
    policies = [parameters(worker)]
    for _ in range(2):
        step(worker)
        policies.append(parameters(worker))
    return policies, averaged(worker)


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_moves_towards_the_policy_after_each_step(folder, two_ranks, ranks):
    policies, found = (
        alone(averaging(), two_steps, folder) if ranks == 1 else two_ranks.run(averaging(2), two_steps, folder)[0]
    )
    for name, first in policies[0].items():
        expected = first
        for policy in policies[1:]:
            expected = DECAY * expected + (1 - DECAY) * policy[name]
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-6)
        assert not torch.equal(found[name], policies[-1][name])


def exchanged(worker, folder):
    begin(worker, folder)
    step(worker)
    policy, average, state = parameters(worker), averaged(worker), worker.state()
    worker.exchange_average()
    during = parameters(worker), worker.state()
    worker.exchange_average()
    return policy, average, during, (parameters(worker), averaged(worker), worker.state() == state)


def test_a_validation_exchanges_it_with_the_policy_and_hides_the_state_meanwhile(folder):
    policy, average, (during, state), (after, later, same) = alone(averaging(), exchanged, folder)
    assert state is None, "the next driver must not take it for the policy"
    assert all(torch.equal(during[name], average[name]) for name in policy)
    assert all(torch.equal(after[name], policy[name]) for name in policy)
    assert all(torch.equal(later[name], average[name]) for name in average)
    assert same


def train_and_save(worker, folder, directory):
    begin(worker, folder)
    step(worker)
    saved = averaged(worker)
    worker.begin_save(directory)
    worker.finish_save()
    step(worker)
    return saved, averaged(worker)


def restore_and_train(worker, folder, directory):
    begin(worker, folder)
    worker.restore(directory)
    restored = averaged(worker)
    step(worker)
    return restored, averaged(worker)


def test_it_is_restored_by_any_number_of_ranks_and_continues_bit_for_bit(tmp_path, folder, two_ranks):
    directory = str(tmp_path / "ranks")
    saved, later = alone(averaging(), train_and_save, folder, directory)
    restored, trained = alone(averaging(), restore_and_train, folder, directory)
    torch.testing.assert_close(restored, saved, rtol=0, atol=0)
    torch.testing.assert_close(trained, later, rtol=0, atol=0)
    restored, _ = two_ranks.run(averaging(2), restore_and_train, folder, directory)[0]
    torch.testing.assert_close(restored, saved, rtol=0, atol=0)


def checkpoint_of(worker, folder, tokenizer, run):
    """A checkpoint as the driver writes it, and its average."""
    target = Volume(run).checkpoint(1, 1)
    staged = target.with_name(f".{target.name}.part")
    (staged / RANKS).mkdir(parents=True)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(staged / MODEL)
    (staged / MODEL / "config.json").write_bytes((Path(folder) / "config.json").read_bytes())
    begin(worker, folder)
    step(worker)
    worker.begin_save(str(staged / RANKS))
    worker.finish_save()
    expected = averaged(worker) if worker.average else {}
    return commit(staged, target, step=1, attempt=1, reward=None), expected


@pytest.mark.parametrize("decay", [DECAY, None])
def test_an_export_may_hold_it_in_place_of_the_policy(tmp_path, folder, decay):
    tokenizer = write_model_dir(tmp_path / "tokenizer")
    ref, expected = alone(averaging(decay=decay), checkpoint_of, folder, tokenizer, tmp_path / "run")
    if decay is None:
        with pytest.raises(DataError, match="holds no average"):
            export_model(ref, tmp_path / "model", "float32", ema=True)
        return
    export_model(ref, tmp_path / "model", "float32", ema=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert expected
    assert all(torch.equal(model[name], each) for name, each in expected.items())
