"""Rollout correction against verl's functions (tools/verl_golden.py), and over ranks and minibatches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_trainer.losses.aggregation import token_weights
from rljob_trainer.losses.correction import LogRatios, importance_weights, kept_tokens
from rljob_trainer.losses.correction_metrics import PREFIX, correction_spreads
from rljob_trainer.losses.policy import LOSSES, PolicyBatch
from rljob_trainer.losses.spread import Spread, added, reported
from rljob_trainer.losses.totals import BatchTotals
from rljob_trainer.rank.correcting import weigh
from rljob_trainer.rank.shard import ShardSample, split
from rljob_trainer.rank.step import weighted
from tests.rljob_trainer.checkpoint_support import make_spec
from tests.rljob_trainer.rank_support import alone, random_trajectories

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("verl.json").read_text())
INPUTS = GOLDEN["inputs"]
LENGTHS = torch.tensor(INPUTS["lengths"])


def flat(name: str) -> torch.Tensor:
    rows = torch.tensor(INPUTS[name], dtype=torch.float64)
    return rows[torch.arange(rows.shape[1]) < LENGTHS[:, None]]


def settings_of(correction: dict[str, Any]) -> Any:
    return make_spec(algorithm={"rolloutCorrection": correction}).algorithm.rollout_correction


def ratios() -> LogRatios:
    return LogRatios(flat("old_log_probs") - flat("engine_log_probs"), LENGTHS)


@pytest.mark.parametrize("name", GOLDEN["corrections"])
def test_masks_and_metrics_are_verls(name):
    golden = GOLDEN["corrections"][name]
    settings = settings_of(golden["settings"])
    np.testing.assert_array_equal(kept_tokens(ratios(), settings).numpy(), np.array(golden["kept"]) > 0)
    assert bool(settings.rollout_rs) == (0 in golden["kept"]), "the inputs reach no bound"
    parts = [
        correction_spreads(ours[rows], engine[rows], LENGTHS[part], settings)
        for ours, engine in [(flat("old_log_probs"), flat("engine_log_probs"))]
        for part, rows in [(slice(2), slice(13)), (slice(2, None), slice(13, None))]
    ]
    found = reported(added([parts[0], {}, parts[1]]))
    assert found.keys() == golden["metrics"].keys()
    assert found == pytest.approx(golden["metrics"], rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", [name for name, each in GOLDEN["corrections"].items() if each["weights"]])
def test_weights_are_verls(name):
    golden = GOLDEN["corrections"][name]
    samples = [ShardSample(each) for each in random_trajectories(len(LENGTHS))]
    for sample, length in zip(samples, LENGTHS.tolist(), strict=True):
        sample.loss_tokens = length
    for column in ("old_log_probs", "engine_log_probs"):
        for sample, part in zip(samples, split(flat(column).numpy(), samples), strict=True):
            setattr(sample, column, part)
    alone(make_spec(), lambda _: weigh(samples, settings_of(golden["settings"])))
    found = np.concatenate([sample.weights for sample in samples if sample.weights is not None])
    np.testing.assert_allclose(found, golden["weights"], rtol=1e-6)


def total(per_token: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
    sequences = len(LENGTHS) if kept is None else int((LogRatios(kept.double(), LENGTHS).sums(kept.double()) > 0).sum())
    totals = BatchTotals(int(LENGTHS.sum() if kept is None else kept.sum()), sequences)
    return (token_weights("sequence_mean", LENGTHS, totals, 9, kept).double() * per_token).sum()


@pytest.mark.parametrize("name", GOLDEN["weighted_losses"])
def test_weighted_losses_are_verls(name):
    golden = GOLDEN["weighted_losses"][name]
    token = {"rolloutIs": "token", "rolloutIsThreshold": "1.2"}
    algorithm = make_spec(algorithm={"loss": name, "rolloutCorrection": token} | golden["settings"]).algorithm
    weights = importance_weights(ratios(), algorithm.rollout_correction).applied
    each = torch.tensor(INPUTS["sequence_advantages"], dtype=torch.float64).repeat_interleave(LENGTHS)
    log_probs = flat("log_probs").requires_grad_()
    batch = PolicyBatch(log_probs, each, flat("old_log_probs"), lengths=LENGTHS, weights=weights)
    loss = total(weighted(LOSSES[algorithm.loss](batch, algorithm).per_token, batch, algorithm))
    loss.backward()
    assert loss.item() == pytest.approx(golden["loss"], rel=1e-6)
    torch.testing.assert_close(log_probs.grad, torch.tensor(golden["gradient"]).double(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", GOLDEN["bypasses"])
def test_losses_with_bypassed_old_log_probabilities_are_verls(name):
    golden = GOLDEN["bypasses"][name]
    loss = "gpg" if golden["settings"]["lossType"] == "reinforce" else "dual_clip"
    bounds = {"clipRatioC": 1.5} if loss == "dual_clip" else {}
    correction = {"bypassMode": True} | golden["settings"]
    algorithm = make_spec(algorithm={"loss": loss, "rolloutCorrection": correction} | bounds).algorithm
    each = torch.tensor(INPUTS["sequence_advantages"], dtype=torch.float64).repeat_interleave(LENGTHS)
    log_probs, engine = flat("log_probs").requires_grad_(), flat("engine_log_probs")
    now = LogRatios(log_probs.detach() - engine, LENGTHS)
    kept = kept_tokens(now, algorithm.rollout_correction)
    batch = PolicyBatch(log_probs, each, engine, engine_log_probs=engine, mask=kept, lengths=LENGTHS)
    found = total(weighted(LOSSES[algorithm.loss](batch, algorithm).per_token, batch, algorithm), kept)
    found.backward()
    assert found.item() == pytest.approx(golden["loss"], rel=1e-6)
    expected = torch.tensor(golden["gradient"]).double()
    torch.testing.assert_close(log_probs.grad, expected, rtol=1e-6, atol=1e-7)
    metrics = reported(correction_spreads(log_probs.detach(), engine, LENGTHS, algorithm.rollout_correction))
    assert metrics == pytest.approx(golden["metrics"], rel=1e-6, abs=1e-7)


def test_a_spread_of_parts_is_that_of_the_whole():
    values = np.array([3.0, -1.0, 2.0, 5.0])
    whole = Spread.of(values[:1]) + Spread.of(values[1:]) + Spread()
    assert (whole.mean, whole.smallest, whole.largest) == (2.25, -1.0, 5.0)
    assert whole.deviation() == pytest.approx(values.std())
    assert whole.deviation(degrees=1) == pytest.approx(values.std(ddof=1))
    assert reported({(f"{PREFIX}kl", "mean"): Spread()}) == {}
