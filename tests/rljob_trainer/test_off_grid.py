"""Master weights of a model that was published in bfloat16."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_trainer.rank.off_grid import move_off_grid
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import alone, write_model

BF16 = torch.bfloat16


def drawn(count):
    return 0.05 * torch.randn(count, generator=torch.Generator().manual_seed(0))


def moved(weight, seed=1):
    made = weight.clone()
    move_off_grid([made], seed)
    return made


def test_copies_are_the_published_values_and_masters_are_between_them():
    edges = torch.tensor([1.0, -1.0, 2.0**-9, -(2.0**-9), 0.0, -0.0, 3e38, 1e-40]).to(BF16)
    published = torch.cat([drawn(100_000).to(BF16), edges]).float()
    masters = moved(published)
    assert torch.equal(masters.to(BF16).float(), published)
    assert (masters != published).float().mean() > 0.99
    assert torch.equal(masters, moved(published))
    assert not torch.equal(masters, moved(published, seed=2))


def test_a_small_update_changes_what_is_computed_by_its_size_on_average():
    published = drawn(400_000).to(BF16).float()
    masters = moved(published)
    for update in (1e-6, -1e-5):
        changed = ((masters + update).to(BF16).float() - published).mean()
        assert abs(changed / update - 1) < 0.1
        large = published.abs() > 0.01
        assert torch.equal((published + update).to(BF16).float()[large], published[large]), "nothing without it"


@pytest.mark.parametrize("shape", [(), (0,), (40, 3), (3000, 2000)])
def test_weights_of_any_shape_and_layout_move(shape):
    published = (1 + torch.rand(shape)).to(BF16).float()
    for weight in (published, published.T if len(shape) == 2 else published):
        made = weight.clone(memory_format=torch.preserve_format)
        move_off_grid([made], 1)
        assert torch.equal(made.to(BF16).float(), weight)
        assert weight.numel() == 0 or (made != weight).float().mean() > 0.9


def test_weights_that_the_copies_do_not_hold_exactly_stay():
    trained = drawn(1000)
    assert (moved(trained) == trained).float().mean() > 0.99
    published = trained.to(BF16).float()
    assert torch.equal(moved(torch.arange(3)), torch.arange(3))
    tied = published.clone()
    move_off_grid([tied, tied], 1)
    assert torch.equal(tied, moved(published))


@pytest.mark.parametrize(("dtype", "same"), [("bfloat16", False), ("float32", True)])
def test_a_policy_that_computes_in_bfloat16_begins_there(tmp_path, dtype, same):
    folder = write_model(tmp_path, dtype=BF16)
    published = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())

    def masters(worker):
        worker.load(folder)
        return {name: each.detach().clone() for name, each in worker.policy.network.named_parameters()}

    found = alone(make_spec(model={"path": "model", "dtype": dtype}), masters)
    assert found.keys() == published.keys()
    for name, weight in found.items():
        assert torch.equal(weight, published[name]) == same
        assert torch.equal(weight.to(BF16), published[name].to(BF16))
