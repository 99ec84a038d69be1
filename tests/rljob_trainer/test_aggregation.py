"""Aggregation: weights by hand, and the same loss and gradient however a minibatch is split."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from rljob_api.v1alpha1.algorithm import Aggregation
from rljob_trainer.losses.aggregation import token_weights
from rljob_trainer.losses.totals import BatchTotals

EVERY_AGGREGATION: tuple[Aggregation, ...] = get_args(Aggregation)

# Two responses of 1 and 3 tokens, of at most 10.
BY_HAND: list[tuple[Aggregation, list[float]]] = [
    ("token_mean", [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
    ("sequence_mean", [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
    ("dr_grpo", [1 / 20, 1 / 20, 1 / 20, 1 / 20]),
]


@pytest.mark.parametrize(("aggregation", "expected"), BY_HAND)
def test_weights_of_a_whole_minibatch(aggregation: Aggregation, expected: list[float]):
    weights = token_weights(aggregation, torch.tensor([1, 3]), BatchTotals(tokens=4, trajectories=2), 10)
    assert weights.dtype == torch.float32
    assert weights.tolist() == pytest.approx(expected)


def test_every_aggregation_is_worked_out_above():
    assert {name for name, _ in BY_HAND} == set(EVERY_AGGREGATION)


def formula(aggregation: Aggregation, responses: list[Tensor], max_response_tokens: int) -> Tensor:
    match aggregation:
        case "token_mean":
            return torch.cat(responses).mean()
        case "sequence_mean":
            return torch.stack([response.mean() for response in responses]).mean()
        case "dr_grpo":
            return torch.cat(responses).sum() / (len(responses) * max_response_tokens)


@pytest.mark.parametrize("aggregation", EVERY_AGGREGATION)
@pytest.mark.parametrize("split", [[7], [1] * 7, [3, 4], [4, 3], [1, 5, 1], [0, 7], [2, 0, 5]])
def test_the_sum_over_any_split_is_the_loss_of_the_minibatch(aggregation: Aggregation, split: list[int]):
    lengths = [5, 1, 8, 2, 2, 13, 3]
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole, parts = values.clone().requires_grad_(), values.clone().requires_grad_()
    loss = formula(aggregation, list(whole.square().split(lengths)), 16)
    totals, total, first = BatchTotals(sum(lengths), len(lengths)), 0.0, 0
    for responses in split:
        part = lengths[first : first + responses]
        start = sum(lengths[:first])
        tokens = parts[start : start + sum(part)]
        weights = token_weights(aggregation, torch.tensor(part, dtype=torch.int64), totals, 16)
        micro = (weights * tokens.square()).sum()
        micro.backward()  # one micro-batch, on whichever rank: gradients add up
        total += micro.item()
        first += responses
    loss.backward()
    assert total == pytest.approx(loss.item(), rel=1e-6)
    assert whole.grad is not None
    torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [1 / 3, 0, 0, 1 / 3, 1 / 3]),
        ("sequence_mean", [1 / 2, 0, 0, 1 / 4, 1 / 4]),
        ("dr_grpo", [1 / 20, 0, 0, 1 / 20, 1 / 20]),
    ],
)
def test_tokens_that_the_mask_leaves_out_weigh_nothing_and_are_not_counted(
    aggregation: Aggregation, expected: list[float]
):
    """Trajectories of 1, 1 and 3 tokens, of which the second is left out whole and the third's first."""
    mask = torch.tensor([True, False, False, True, True])
    weights = token_weights(aggregation, torch.tensor([1, 1, 3]), BatchTotals(3, 2), 10, mask)
    assert weights.tolist() == pytest.approx(expected)


def test_a_mask_that_leaves_nothing_gives_no_loss():
    for aggregation in EVERY_AGGREGATION:
        weights = token_weights(aggregation, torch.tensor([2]), BatchTotals(0, 0), 10, torch.zeros(2, dtype=torch.bool))
        assert weights.tolist() == [0, 0]
