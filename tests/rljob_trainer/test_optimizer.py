"""ShardedAdamW against torch's AdamW, in slices, and with steps that the device leaves out."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from rljob_trainer.rank import optimizer as module
from rljob_trainer.rank.learning_rate import learning_rate
from rljob_trainer.rank.optimizer import ShardedAdamW

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
