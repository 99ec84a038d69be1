"""ShardedAdamW against torch's AdamW, in slices, and with steps that the device leaves out."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from rljob_trainer.rank import optimizer as module
from rljob_trainer.rank.learning_rate import learning_rate
from rljob_trainer.rank.muon import ShardedMuon
from rljob_trainer.rank.optimizer import ShardedAdamW
from tests.rljob_trainer import rank_support
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import MARK, alone, plans_of, random_trajectories, write_model

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.1}


def weights():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=draw).requires_grad_() for size in (5, 3, 7)]


def give_gradients(parameters, seed):
    draw = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=draw)


@pytest.mark.parametrize("elements", [1, 8, 100])
def test_it_computes_what_torch_does_bit_for_bit(monkeypatch, elements):
    monkeypatch.setattr(module, "_SLICE", elements)
    ours, theirs = weights(), weights()
    one = ShardedAdamW(ours, **SETTINGS, device=CPU)
    other = torch.optim.AdamW(theirs, **SETTINGS, fused=True)
    for step in range(3):
        for parameters, optimizer in ((ours, one), (theirs, other)):
            give_gradients(parameters, step)
            optimizer.step()
    for parameter, expected in zip(ours, theirs, strict=True):
        assert torch.equal(parameter, expected)
        assert torch.equal(one.state[parameter]["exp_avg_sq"], other.state[expected]["exp_avg_sq"])
        assert one.state[parameter]["step"] == 3


def test_biases_and_norms_can_be_left_out_of_weight_decay():
    """As two groups of torch's AdamW."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(3, 2), (3,), (2, 4), (4,)]
    ours = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]
    theirs = [nn.Parameter(each.detach().clone()) for each in ours]
    one = ShardedAdamW(ours, **SETTINGS, device=CPU, matrices_alone=True)
    groups: list[dict[str, Any]] = [{"params": theirs[::2]}, {"params": theirs[1::2], "weight_decay": 0.0}]
    other = torch.optim.AdamW(groups, **SETTINGS, fused=True)
    for step in range(3):
        for parameters, optimizer in ((ours, one), (theirs, other)):
            give_gradients(parameters, step)
            optimizer.step()
    assert all(map(torch.equal, ours, theirs))
    assert len(one.param_groups) == 1


def test_muon_is_torchs_for_matrices_and_adamw_for_the_rest():
    """Beside torch.optim.Muon with AdamW's size of updates, bit for bit; a skipped step changes nothing."""
    draw = torch.Generator().manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape, generator=draw)) for shape in [(6, 4), (6,), (3, 5)]]
    theirs = [nn.Parameter(each.detach().clone()) for each in ours]
    one = ShardedMuon(ours, **SETTINGS, device=CPU)
    one.matrices = frozenset({id(ours[0])})
    muon = torch.optim.Muon(theirs[:1], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(theirs[1:], **SETTINGS, fused=True)
    for step in range(3):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        for optimizer in (one, muon, adamw):
            optimizer.step()
    for parameter, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=1e-6)
    assert set(one.state[ours[0]]) == {"step", "momentum_buffer"}
    before = [each.detach().clone() for each in (*ours, one.state[ours[0]]["momentum_buffer"])]
    one.skip = torch.ones(())
    for each in ours:
        each.grad = torch.full_like(each, torch.nan)
    one.step()
    assert all(map(torch.equal, (*ours, one.state[ours[0]]["momentum_buffer"]), before))


SCHEDULES: list[tuple[Any, str, dict[str, Any], float, int | None]] = [
    ("linear", "linear", {}, 0.0, None),
    ("cosine", "cosine", {}, 0.0, None),
    ("cosine", "cosine_with_min_lr", {"min_lr_rate": 0.1}, 0.1, None),
    ("wsd", "warmup_stable_decay", {"num_decay_steps": 4, "decay_type": "linear"}, 0.0, 4),
    ("wsd", "warmup_stable_decay", {"num_decay_steps": 4, "decay_type": "linear", "min_lr_ratio": 0.2}, 0.2, 4),
    ("wsd", "warmup_stable_decay", {"num_decay_steps": 2, "decay_type": "linear"}, 0.0, None),
]


@pytest.mark.parametrize(("ours", "theirs", "options", "floor", "decay"), SCHEDULES)
def test_schedules_are_those_of_transformers_after_the_warm_up(ours, theirs, options, floor, decay):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3.0)
    scheduler = get_scheduler(theirs, optimizer, 5, 25, scheduler_specific_kwargs=options)
    expected = []
    for _ in range(25):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    found = [learning_rate(step, 3.0, 25, 5, ours, floor, decay) for step in range(25)]
    assert found[5:] == pytest.approx(expected[5:])
    assert found[:5] == pytest.approx([3.0 * step / 6 for step in range(1, 6)])  # theirs begins with 0


def test_a_state_that_is_loaded_leaves_the_settings_as_they_are_now():
    before, after = (
        ShardedAdamW(weights(), **SETTINGS | changed, device=CPU) for changed in ({}, {"weight_decay": 0.5})
    )
    give_gradients(before.param_groups[0]["params"], 0)
    before.step()
    after.load_state_dict(before.state_dict())
    after.keep_settings()
    assert after.param_groups[0]["weight_decay"] == 0.5
    assert [each["step"] for each in after.state.values()] == [1, 1, 1]


def test_a_step_that_is_skipped_changes_nothing():
    parameters = weights()
    optimizer = ShardedAdamW(parameters, **SETTINGS, device=CPU)
    give_gradients(parameters, 0)
    optimizer.step()
    before = [each.detach().clone() for each in parameters]
    optimizer.skip = torch.ones(())
    give_gradients(parameters, 1)
    optimizer.step()
    assert all(map(torch.equal, parameters, before))
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}
    optimizer.skip = torch.zeros(())
    optimizer.step()
    assert not any(map(torch.equal, parameters, before))


def muon_steps(worker, folder, directory, *, resume):
    """The policy after a second step; a first one before, or from the checkpoint of one."""
    worker.load(folder)
    worker.begin_stage("sft")
    trajectories = random_trajectories(6, seed=3)
    plans, totals = plans_of(trajectories, worker.settings.world, 50)

    def step():
        worker.supervised_step(plans[worker.settings.rank], totals, trajectories, 1e-2, MARK)

    if resume:
        worker.restore(directory)
    else:
        step()
        worker.begin_save(directory)
        worker.finish_save()
    step()
    return rank_support.parameters(worker)


def test_muon_takes_the_layers_matrices_on_any_number_of_ranks_and_is_resumed(tmp_path, two_ranks):
    folder = write_model(tmp_path / "model", "tied")
    plain = alone(make_spec(1), partial(muon_steps, resume=False), folder, str(tmp_path / "adamw"))
    specs = [make_spec(ranks, actor={"optimizer": "muon", "gradClip": 1e6}) for ranks in (1, 2)]
    directory = str(tmp_path / "muon")
    trained = alone(specs[0], partial(muon_steps, resume=False), folder, directory)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(trained[name], plain[name])
    again = alone(specs[0], partial(muon_steps, resume=True), folder, directory)
    torch.testing.assert_close(again, trained, rtol=0, atol=0)
    shared = two_ranks.run(specs[1], partial(muon_steps, resume=True), folder, directory)[0]
    torch.testing.assert_close(shared, trained, rtol=0, atol=2e-3)  # the iteration is in bfloat16
