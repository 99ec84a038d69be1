"""The metrics `rollout_corr/*`, with verl's names and meanings, as spreads that add up over ranks.

The first eleven are always measured; those of weights and rejections only if the algorithm has some. "seq" are
trajectories. Means over sequences count each one once, whatever its length.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rljob_api.resolve import ResolvedRolloutCorrection
from rljob_trainer.losses.correction import (
    MAX_LOG_RATIO,
    Bounds,
    Judged,
    LogRatios,
    Weights,
    importance_weights,
    judged,
)
from rljob_trainer.losses.spread import Kind, Spread, Spreads

PREFIX = "rollout_corr/"

Measured = Iterator[tuple[str, Kind, NDArray[Any]]]


def correction_spreads(
    trainer: Tensor, engine: Tensor, lengths: Tensor, settings: ResolvedRolloutCorrection
) -> Spreads:
    """Of the tokens of one part of a step.

    trainer, engine: [T], log-probabilities of the tokens in the loss. lengths: [n], of each sequence, all above 0.
    """
    trainer, engine = trainer.double(), engine.double()
    ratios = LogRatios(trainer - engine, lengths)
    measured = [*_drift(trainer, engine, ratios)]
    if settings.rollout_is != "none":
        measured += _weights(ratios, importance_weights(ratios, settings), settings)
    if settings.rollout_rs:
        measured += _rejections(ratios, judged(ratios, settings))
    return {(PREFIX + name, kind): Spread.of(values) for name, kind, values in measured}


def _drift(trainer: Tensor, engine: Tensor, ratios: LogRatios) -> Measured:
    """KL(engine || trainer) and chi squared by token and by sequence, and perplexities."""
    d = ratios.values.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ours, theirs = -ratios.means(trainer), -ratios.means(engine)
    gap = (ours - theirs).numpy()
    of_sequences = ratios.sums(ratios.values).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    yield "kl", "mean", -ratios.values.numpy()
    yield "k3_kl", "mean", (d.expm1() - d).numpy()
    yield "training_ppl", "mean", ours.exp().numpy()
    yield "training_log_ppl", "mean", ours.numpy()
    yield "rollout_ppl", "mean", theirs.exp().numpy()
    yield "rollout_log_ppl", "mean", theirs.numpy()
    yield "log_ppl_diff", "mean", gap
    yield "log_ppl_diff", "extremes", gap
    yield "log_ppl_abs_diff", "mean", np.abs(gap)
    yield "ppl_ratio", "mean", np.exp(gap)
    yield "chi2_token", "mean", np.expm1(2 * d.numpy())
    yield "chi2_seq", "mean", np.expm1(2 * of_sequences.numpy())


def _weights(ratios: LogRatios, weights: Weights, settings: ResolvedRolloutCorrection) -> Measured:
    bounds = Bounds.parse(settings.rollout_is_threshold)
    lower = 1 / bounds.upper if bounds.lower is None else bounds.lower
    raw, applied = weights.raw.numpy(), weights.applied.numpy()
    of_sequences, raw_means = ratios.means(weights.applied).numpy(), ratios.means(weights.raw).numpy()
    by_sequence = settings.rollout_is == "sequence"
    compared = raw_means if by_sequence else raw
    yield "rollout_is", "weights", applied
    yield "rollout_is", "extremes", raw_means if by_sequence else applied
    yield "rollout_is_ratio_fraction_high", "mean", compared > bounds.upper
    yield "rollout_is_ratio_fraction_low", "mean", compared < lower
    yield "rollout_is_seq", "sequences", of_sequences
    yield "rollout_is_seq", "from_1", of_sequences
    yield "rollout_is_seq_fraction_high", "mean", raw_means > bounds.upper
    yield "rollout_is_seq_fraction_low", "mean", raw_means < lower
    if bounds.lower is not None:
        yield "rollout_is_oob_ratio", "mean", (raw > bounds.upper) | (raw < lower)
    if settings.rollout_is_batch_normalize:
        yield "rollout_is_batch_norm_factor", "mean", of_sequences if by_sequence else applied


def _rejections(ratios: LogRatios, entries: list[Judged]) -> Measured:
    rejected = np.zeros(ratios.values.numel(), np.bool_)
    for each in entries:
        yield from _rejection(ratios, each)
        rejected |= ~each.kept.numpy()
    yield "rollout_rs_masked_fraction", "mean", rejected
    yield "rollout_rs_seq_masked_fraction", "mean", _any(ratios, rejected)


def _rejection(ratios: LogRatios, entry: Judged) -> Measured:
    """Of one entry of rolloutRs. k2 and k3 have no lower bound, and nothing is below it."""
    name, tokens, of_sequences = f"rollout_rs_{entry.name}", entry.statistic, ratios.means(entry.statistic).numpy()
    floor = 0.0 if entry.lower is None else entry.lower
    compared = tokens.numpy() if entry.by_token else of_sequences
    rejected = ~entry.kept.numpy()
    yield name, "extremes", compared
    yield f"{name}_mean", "mean", tokens.numpy()
    yield name, "std", tokens.clamp(floor, entry.upper).numpy()
    yield f"{name}_fraction_high", "mean", compared > entry.upper
    yield f"{name}_fraction_low", "mean", (compared < floor) & (entry.lower is not None)
    yield f"{name}_seq", "sequences", of_sequences
    yield f"{name}_seq", "from_0", of_sequences
    yield f"{name}_seq_fraction_high", "mean", of_sequences > entry.upper
    if entry.lower is not None:
        yield f"{name}_seq_fraction_low", "mean", of_sequences < entry.lower
    yield f"{name}_masked_fraction", "mean", rejected
    yield f"{name}_seq_masked_fraction", "mean", _any(ratios, rejected)


def _any(ratios: LogRatios, of_tokens: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[T] -> [n]: whether it is so for a token of the sequence."""
    starts = np.cumsum([0, *ratios.lengths.tolist()])[:-1]
    return np.logical_or.reduceat(of_tokens, starts) if len(starts) else np.zeros(0, np.bool_)
