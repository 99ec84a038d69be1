"""Policy losses against numbers worked out by hand; test_losses_against_trl.py compares them with TRL's."""

from collections.abc import Sequence
from typing import get_args

import pytest
import torch

from rljob_api.v1alpha1.algorithm import Loss
from rljob_api.v1alpha1.terms import PAIRED
from rljob_trainer.losses.policy import LOSSES, LossTerms, PolicyBatch
from tests.rljob_trainer.checkpoint_support import make_spec

EVERY_LOSS: list[Loss] = [name for name in LOSSES if name not in {"sppo", *PAIRED}]
"""But those of test_preference.py."""
SURROGATES: tuple[Loss, ...] = ("clip", "dual_clip", "decoupled_clip", "gspo", "geo_mean", "clip_cov", "kl_cov")
"""Losses of the form -r A."""
DROPPING: tuple[Loss, ...] = (*SURROGATES[:-1], "dppo_tv", "dppo_kl")
"""Losses in which a clipped token has no gradient."""


def evaluate(
    name: Loss,
    ratios: Sequence[float],
    advantages: Sequence[float],
    lengths: Sequence[int] | None = None,
    old: float = -3.0,
    chosen: Sequence[bool] | None = None,
    **fields: object,
) -> tuple[LossTerms, list[float]]:
    """The loss at these probability ratios, and its gradient by log_probs.

    lengths: of the trajectories, of one token each by default. old: log-probability of each token before.
    """
    before = torch.full((len(ratios),), old, dtype=torch.float64)
    log_probs = (before + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    tokens = PolicyBatch(
        log_probs,
        torch.tensor(advantages, dtype=torch.float64),
        before,
        lengths=torch.tensor(lengths or [1] * len(ratios)),
        chosen=None if chosen is None else torch.tensor(chosen),
    )
    terms = LOSSES[name](tokens, make_spec(algorithm={"loss": name} | fields).algorithm)
    terms.per_token.sum().backward()
    assert log_probs.grad is not None
    return terms, log_probs.grad.tolist()


def test_every_loss_of_the_api_is_registered():
    assert set(LOSSES) == set(get_args(Loss)) - {"custom"}


def test_clip_takes_the_smaller_promise():
    # Range 0.8 to 1.2. Per token -min(r A, clip(r) A), and -r A as its gradient where r A is the smaller:
    #   r 1.1 A  2: -min(2.2, 2.2);  inside
    #   r 1.5 A  2: -min(3.0, 2.4);  clipped above
    #   r 0.5 A  2: -min(1.0, 1.6);  below, but the token is good: pulled back up
    #   r 0.5 A -1: -min(-0.5, -0.8); clipped below
    #   r 1.5 A -1: -min(-1.5, -1.2); above, but the token is bad: pulled back down
    terms, gradient = evaluate("clip", [1.1, 1.5, 0.5, 0.5, 1.5], [2, 2, 2, -1, -1], clipRatio=0.2)
    assert terms.per_token.tolist() == pytest.approx([-2.2, -2.4, -1.0, 0.8, 1.5])
    assert terms.clipped.tolist() == [False, True, False, True, False]
    assert gradient == pytest.approx([-2.2, 0, -1.0, 0, 1.5])


def test_decoupled_clip_has_a_range_for_each_side():
    # Range 0.9 to 1.5, so that 1.4 is inside and 0.85 outside.
    terms, gradient = evaluate("decoupled_clip", [1.4, 1.6, 0.85], [1, 1, -1], clipRatioLow=0.1, clipRatioHigh=0.5)
    assert terms.per_token.tolist() == pytest.approx([-1.4, -1.5, 0.9])
    assert terms.clipped.tolist() == [False, True, True]
    assert gradient == pytest.approx([-1.4, 0, 0])


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    # Range 0.8 to 1.2, bound 3: for A < 0 the loss is at most -3 A; good tokens are as in clip.
    terms, gradient = evaluate("dual_clip", [2.5, 5.0, 0.5, 5.0], [-2, -2, -2, 2], clipRatio=0.2, clipRatioC=3)
    assert terms.per_token.tolist() == pytest.approx([5.0, 6.0, 1.6, -2.4])
    assert terms.clipped.tolist() == [False, True, True, True]
    assert gradient == pytest.approx([5.0, 0, 0, 0])


def test_gspo_clips_whole_sequences_by_the_mean_of_their_log_ratios():
    # Sequences of ratios (2, 1/2), s = 1, inside; and (4, 1, 1), s = 4^(1/3) = 1.587, above 1.5.
    given = ([2, 0.5, 4, 1, 1], [1, 1, 2, 2, 2], [2, 3])
    terms, gradient = evaluate("gspo", *given, clipRatioLow=0.2, clipRatioHigh=0.5)
    assert terms.per_token.tolist() == pytest.approx([-1, -1, -3, -3, -3])
    assert terms.clipped.tolist() == [False, False, True, True, True]
    assert gradient == pytest.approx([-1, -1, 0, 0, 0])


def test_gspo_with_sequence_mean_has_the_gradient_of_the_sequences_ratio():
    # d s / d log pi(token) = s / |y|: GSPO's equation 5, with s = (2 / 2)^(1/2) and 8^(1/3) = 2 and bounds far away.
    _, gradient = evaluate("gspo", [2, 0.5, 8, 1, 1], [1, 1, 1, 1, 1], [2, 3], clipRatioLow=0.9, clipRatioHigh=9)
    assert gradient == pytest.approx([-1, -1, -2, -2, -2])  # times the weights 1/2 and 1/3


def test_geo_mean_clips_the_log_ratio_of_each_token_on_one_side():
    # Bounds 0.4, A = 2 and -1. (e^1, e^-1): (0.4 - 1) / 2 = -0.3; then (e^1, e^-1): (1 - 0.4) / 2 = 0.3.
    e = 2.718281828459045
    terms, gradient = evaluate("geo_mean", [e, 1 / e, e, 1 / e], [2, 2, -1, -1], [2, 2])
    low, high = e**-0.3, e**0.3
    assert terms.per_token.tolist() == pytest.approx([-2 * low, -2 * low, high, high])
    assert terms.clipped.tolist() == [True, False, False, True]
    assert gradient == pytest.approx([0, -2 * low, high, 0])


def test_cispo_bounds_the_weight_and_keeps_the_gradient():
    # Range 0 to 1.5; log pi = -3 + log r.
    terms, gradient = evaluate("cispo", [1.0, 2.0, 0.1], [1, 2, -1], clipRatioLow=1, clipRatioHigh=0.5)
    assert gradient == pytest.approx([-1, -3, 0.1])
    assert terms.clipped.tolist() == [False, True, False]
    assert terms.per_token[0].item() == pytest.approx(3)


def test_sapo_closes_its_gate_faster_for_bad_tokens():
    # Gate 4/tau sigmoid(tau (r - 1)): at r = 2 and tau 1, 4 x 0.731059; its slope 4 x 0.731059 x 0.268941 x r.
    terms, gradient = evaluate("sapo", [2, 2], [1, -1], tauPos=1, tauNeg=2)
    assert terms.per_token.tolist() == pytest.approx([-2.924234, 1.761594], rel=1e-6)
    assert gradient == pytest.approx([-1.572896, 0.839949], rel=1e-5)


def test_dppo_drops_a_token_by_its_change_of_probability_and_not_by_its_ratio():
    # p_old 0.05: ratio 3 adds 0.10, inside 0.15; ratio 5 adds 0.20. Weights are at most 2.
    old = -2.995732273553991
    given = ([3, 5, 5, 0.5], [1, 1, -1, -1])
    terms, gradient = evaluate("dppo_tv", *given, old=old, clipRatioLow=0.01, clipRatioHigh=0.15, clipRatioC=2)
    assert terms.clipped.tolist() == [False, True, False, True]
    assert gradient == pytest.approx([-2, 0, 2, 0])
    # D = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)): 0.0507 at ratio 3, 0.1938 at 5, 0.0096 at 0.5.
    terms, gradient = evaluate("dppo_kl", *given, old=old, clipRatioLow=0.009, clipRatioHigh=0.06, clipRatioC=2)
    assert terms.clipped.tolist() == [False, True, False, True]
    assert gradient == pytest.approx([-2, 0, 2, 0])


def test_topr_weighs_bad_sequences_by_the_ratio_of_the_whole_sequence():
    # Good: 1, though the ratio is 1/4. Bad: 1/4 = 0.5 x 0.5, and at most 1.
    terms, gradient = evaluate("topr", [0.5, 0.5, 0.5, 0.5, 2, 2], [1, 1, -1, -1, -1, -1], [2, 2, 2])
    assert gradient == pytest.approx([-1, -1, 0.25, 0.25, 1, 1])
    assert terms.clipped.tolist() == [False, False, True, True, False, False]


def test_clip_cov_leaves_out_the_chosen_tokens():
    terms, gradient = evaluate("clip_cov", [1.1, 1.1], [2, 2], chosen=[True, False])
    assert terms.per_token.tolist() == pytest.approx([0, -2.2])
    assert gradient == pytest.approx([0, -2.2])


def test_kl_cov_holds_the_chosen_tokens_near_the_old_policy():
    terms, gradient = evaluate("kl_cov", [2, 2, 0.5], [1, 1, 1], chosen=[True, False, True], ppoKlCoef=0.5)
    assert terms.per_token.tolist() == pytest.approx([-2 + 0.5 * 0.693147, -2, -0.5 + 0.5 * 0.693147])
    assert gradient == pytest.approx([-1.5, -2, -1])


@pytest.mark.parametrize("name", ["gspo", "geo_mean", "topr"])
def test_a_sequence_s_terms_ignore_tokens_that_the_mask_leaves_out(name: Loss):
    log_probs, advantages = torch.tensor([-1.0, -9.0, -2.0]), torch.tensor([-1.0, 5.0, -1.0])
    old = torch.tensor([-1.5, -0.1, -1.6])
    kept = torch.tensor([True, False, True])
    whole = PolicyBatch(log_probs[kept], advantages[kept], old[kept])
    more = PolicyBatch(log_probs, advantages, old, mask=kept)
    settings = make_spec(algorithm={"loss": name}).algorithm
    assert LOSSES[name](more, settings).per_token[[0, 2]].tolist() == LOSSES[name](whole, settings).per_token.tolist()


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_on_policy_the_gradient_is_that_of_reinforce(name: Loss):
    terms, gradient = evaluate(name, [1, 1, 1], [2, -3, 0])
    assert gradient == pytest.approx([-2, 3, 0])
    if name in SURROGATES:
        assert terms.per_token.tolist() == pytest.approx([-2, 3, 0])
    assert not terms.clipped.any()


@pytest.mark.parametrize("name", DROPPING)
def test_a_token_has_no_gradient_exactly_where_it_is_clipped(name: Loss):
    generator = torch.Generator().manual_seed(0)
    ratios = torch.exp(torch.randn(400, generator=generator)).clamp(max=7).tolist()  # of 0.135: at most 0.95
    terms, gradient = evaluate(name, ratios, torch.randn(400, generator=generator).tolist(), old=-2.0)
    assert 50 < int(terms.clipped.sum()) < 350
    assert [value == 0 for value in gradient] == terms.clipped.tolist()


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_float32_stays_finite(name: Loss, log_ratio: float, advantage: float):
    log_probs = torch.tensor([log_ratio], requires_grad=True)
    tokens = PolicyBatch(log_probs, torch.tensor([advantage]), torch.zeros(1))
    per_token = LOSSES[name](tokens, make_spec(algorithm={"loss": name}).algorithm).per_token
    per_token.sum().backward()
    assert per_token.isfinite().all()
    assert log_probs.grad is not None
    assert log_probs.grad.abs().item() <= 20.0  # clipRatioC of dppo
    if name in SURROGATES:
        assert log_probs.grad.item() == 0.0
