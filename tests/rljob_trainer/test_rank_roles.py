"""A third model of a rank, with an optimizer of its own: trained, saved, and restored by another number of ranks."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from rljob_trainer.rank.models.role import ModelRole, adamw
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import alone, whole, write_model

STATES = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
RETURNS = torch.randn(6, generator=torch.Generator().manual_seed(1))


class ValueHead(nn.Module):
    """From hidden states [n, 32] to values [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.layers(states)[:, 0]


def with_critic(worker, folder, seed):
    """A rank with policy, reference and a critic."""
    worker.load(folder)
    worker.begin_stage("rl")
    torch.manual_seed(seed)
    head = ValueHead()
    if worker.settings.world > 1:
        fully_shard(head, mesh=worker.mesh)
    critic = ModelRole("critic", head, head, adamw(head, worker.spec, worker.device))
    worker.others = [critic]
    return worker.training(critic)


def step(trainee, rank, world):
    """One optimizer step on this rank's share of the squared errors."""
    own = slice(rank, None, world)
    errors = trainee.module(STATES[own]) - RETURNS[own]
    trainee.backward(errors.square().sum() / len(RETURNS))
    trainee.finish_minibatch(1e-2)


def values(trainee):
    return {name: whole(parameter) for name, parameter in trainee.module.named_parameters()}


def train_and_save(worker, folder, directory):
    """Returns the critic as it is saved, and after one more step."""
    trainee, settings = with_critic(worker, folder, seed=0), worker.settings
    step(trainee, settings.rank, settings.world)
    worker.begin_save(directory)
    worker.finish_save()
    saved = values(trainee)
    step(trainee, settings.rank, settings.world)
    return saved, values(trainee)


def restore_and_train(worker, folder, directory):
    trainee, settings = with_critic(worker, folder, seed=1), worker.settings
    worker.restore(directory)
    restored = values(trainee)
    step(trainee, settings.rank, settings.world)
    return restored, values(trainee)


@pytest.mark.parametrize("writers", [1, 2])
def test_a_third_model_is_trained_saved_and_restored_by_any_number_of_ranks(tmp_path, two_ranks, writers):
    folder, directory = write_model(tmp_path / "weights"), str(tmp_path / "ranks")

    def run(ranks, task):
        if ranks == 1:
            return alone(make_spec(1), task, folder, directory)
        return two_ranks.run(make_spec(2), task, folder, directory)[0]

    saved, later = run(writers, train_and_save)
    assert any(not torch.equal(saved[name], later[name]) for name in saved)
    for readers in (1, 2):
        restored, trained = run(readers, restore_and_train)
        torch.testing.assert_close(restored, saved, rtol=0, atol=0)
        torch.testing.assert_close(trained, later, rtol=0, atol=1e-6)  # its optimizer's moments came along
