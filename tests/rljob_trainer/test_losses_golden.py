"""Losses, aggregations and KL estimates against verl's and Trinity's numbers (tools/verl_golden.py)."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from rljob_api.v1alpha1.algorithm import Aggregation, KlEstimator, Loss
from rljob_api.v1alpha1.terms import PAIRED
from rljob_trainer.losses.aggregation import token_weights
from rljob_trainer.losses.covariance import CovarianceSums, chosen_tokens, scores
from rljob_trainer.losses.kl import kl_estimate
from rljob_trainer.losses.policy import LOSSES, PolicyBatch
from rljob_trainer.losses.totals import BatchTotals
from tests.rljob_trainer.checkpoint_support import make_spec

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("verl.json").read_text())
INPUTS = GOLDEN["inputs"]
LENGTHS = torch.tensor(INPUTS["lengths"])
TOTALS = BatchTotals(tokens=int(LENGTHS.sum()), trajectories=len(LENGTHS))


def flat(name: str, lengths: Tensor = LENGTHS) -> Tensor:
    """[sum(lengths)] of the rows' first tokens."""
    rows = torch.tensor(INPUTS[name], dtype=torch.float64)
    return rows[torch.arange(rows.shape[1]) < lengths[:, None]]


def batch_of(lengths: Tensor) -> PolicyBatch:
    each = torch.tensor(INPUTS["sequence_advantages"], dtype=torch.float64)
    advantages = each.repeat_interleave(lengths)
    log_probs = flat("log_probs", lengths).requires_grad_()
    return PolicyBatch(log_probs, advantages, flat("old_log_probs", lengths), lengths=lengths)


def choice(batch: PolicyBatch, settings: Any) -> Tensor:
    """The tokens that verl takes: it compares the trained policy's log-probabilities, ours those of before."""
    log_probs, advantages = batch.log_probs.detach().numpy(), batch.advantages.numpy()
    sums = CovarianceSums.of(log_probs, advantages)
    ranked = scores(sums.of_each(log_probs, advantages), 0, settings)
    threshold = np.sort(ranked)[-chosen_tokens(len(ranked), settings)]
    return torch.from_numpy((ranked >= threshold) & (ranked > -np.inf))


def test_every_loss_has_golden_numbers():
    assert set(GOLDEN["losses"]) == set(get_args(Loss)) - {"sppo", "custom", *PAIRED}  # test_preference.py
    assert GOLDEN["versions"]["verl"] == "0.9.1"


@pytest.mark.parametrize("name", GOLDEN["losses"])
def test_loss_and_gradient_are_verls(name: Loss):
    golden = GOLDEN["losses"][name]
    settings = make_spec(algorithm={"loss": name} | golden["settings"]).algorithm
    lengths = torch.ones_like(LENGTHS) if name == "topr" else LENGTHS
    batch = batch_of(lengths)
    if name in ("clip_cov", "kl_cov"):
        chosen = choice(batch, settings)
        assert 3 < int(chosen.sum()) < 20
        batch = PolicyBatch(batch.log_probs, batch.advantages, batch.old_log_probs, lengths=lengths, chosen=chosen)
    terms = LOSSES[name](batch, settings)
    totals = BatchTotals(int(lengths.sum()), len(lengths))
    loss = (token_weights("sequence_mean", lengths, totals, 9).double() * terms.per_token).sum()
    loss.backward()
    assert loss.item() == pytest.approx(golden["loss"], rel=1e-6)
    assert batch.log_probs.grad is not None
    torch.testing.assert_close(batch.log_probs.grad, torch.tensor(golden["gradient"]).double(), rtol=1e-6, atol=1e-7)
    if name not in ("gpg", "sapo", "kl_cov"):
        assert terms.clipped.any(), "the inputs reach no bound"


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_aggregations_are_verls(aggregation: Aggregation):
    weights = token_weights(aggregation, LENGTHS, TOTALS, 9)
    expected = pytest.approx(GOLDEN["aggregations"][aggregation], rel=1e-5)
    assert (weights * flat("token_advantages")).sum().item() == expected


@pytest.mark.parametrize("estimator", get_args(KlEstimator))
def test_kl_estimates_are_verls(estimator: KlEstimator):
    estimates = kl_estimate(estimator, flat("log_probs"), flat("reference_log_probs"))
    torch.testing.assert_close(estimates, torch.tensor(GOLDEN["kl"][estimator]).double(), rtol=1e-6, atol=1e-8)
