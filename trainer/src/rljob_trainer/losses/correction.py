"""Importance weights and rejections for samples whose engine and trainer disagree: `algorithm.rolloutCorrection`.

    d = log p_trainer - log p_engine of each token      r = exp(d)
    weights     r of the token, or of its whole sequence; truncated, or 0 out of bounds (IcePop)
    rejection   k1 = -d, k2 = d^2 / 2, k3 = r - 1 - d of the token, or their sum, mean or maximum over its sequence

Everything is flat, [T] tokens of n sequences, so it is the same for a rank's samples at once and for one micro-batch.

Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL: https://fengyao.notion.site/off-policy-rl
Liu et al. 2025, When Speed Kills Stability: https://richardli.xyz/rl-collapse
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_api.resolve import ResolvedRolloutCorrection
from rljob_api.v1alpha1.rollout_correction import Rejecting

MAX_LOG_RATIO = 20.0
"""Bound of |d| before exp, also of the sum over a sequence. verl has the same."""


@dataclass(frozen=True, slots=True)
class LogRatios:
    """d of T tokens in the loss, sequence after sequence.

    values: [T]. lengths: [n], int64, tokens of each sequence; their sum is T.
    """

    values: Tensor
    lengths: Tensor

    def sums(self, values: Tensor) -> Tensor:
        """[T] -> [n]. It adds in a fixed order, also on a GPU."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths, initial=0, unsafe=True)

    def means(self, values: Tensor) -> Tensor:
        """[T] -> [n]; 0 for a sequence without tokens."""
        return self.sums(values) / self.lengths.clamp(min=1)

    def maxima(self, values: Tensor) -> Tensor:
        """[T] -> [n]; values are at least 0, which a sequence without tokens gets."""
        return torch.segment_reduce(values, "max", lengths=self.lengths, initial=0, unsafe=True)

    def spread(self, per_sequence: Tensor) -> Tensor:
        """[n] -> [T]: every token gets its sequence's value."""
        return per_sequence.repeat_interleave(self.lengths, output_size=self.values.numel())


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower: None without one."""

    lower: float | None
    upper: float

    @classmethod
    def parse(cls, text: str) -> "Bounds":
        """Of a text such as "2.0" or "0.5_5.0"."""
        lower, _, upper = text.rpartition("_")
        return cls(float(lower) if lower else None, float(upper))


@dataclass(frozen=True, slots=True)
class Weights:
    """Importance weights. raw, applied: [T], before and after truncation; without normalization."""

    raw: Tensor
    applied: Tensor


def importance_weights(ratios: LogRatios, settings: ResolvedRolloutCorrection) -> Weights:
    """The weights of settings.rollout_is, which is token or sequence. They have no gradient if the ratios have none."""
    d = ratios.values
    if settings.rollout_is == "sequence":
        d = ratios.spread(ratios.sums(d))
    raw = d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounds = Bounds.parse(settings.rollout_is_threshold)
    if bounds.lower is None:
        return Weights(raw, raw.clamp(max=bounds.upper))
    return Weights(raw, torch.where((raw >= bounds.lower) & (raw <= bounds.upper), raw, 0))


@dataclass(frozen=True, slots=True)
class Judged:
    """What one entry of rolloutRs says of each token.

    statistic: [T], the token's or its sequence's. lower, upper: its bounds; lower is None without one.
    """

    name: Rejecting
    statistic: Tensor
    lower: float | None
    upper: float

    @property
    def by_token(self) -> bool:
        return self.name.startswith("token")

    @property
    def kept(self) -> Tensor:
        """[T], bool."""
        below = self.statistic <= self.upper
        return below if self.lower is None else below & (self.statistic >= self.lower)


def judged(ratios: LogRatios, settings: ResolvedRolloutCorrection) -> list[Judged]:
    """One for each entry of settings.rollout_rs; a token stays if all keep it."""
    names, texts = settings.rollout_rs, settings.rollout_rs_threshold
    texts = texts * len(names) if len(texts) == 1 else texts
    return [_judged(ratios, name, Bounds.parse(text)) for name, text in zip(names, texts, strict=True)]


def kept_tokens(ratios: LogRatios, settings: ResolvedRolloutCorrection) -> Tensor:
    """[T], bool: the tokens that no entry of rolloutRs rejects."""
    kept = torch.ones_like(ratios.values, dtype=torch.bool)
    for each in judged(ratios, settings):
        kept &= each.kept
    return kept


def _judged(ratios: LogRatios, name: Rejecting, bounds: Bounds) -> Judged:
    scope, estimator = name.rsplit("_", 1)
    statistic = _estimate(estimator, ratios.values.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    if scope != "token":
        over = {"seq_sum": ratios.sums, "seq_mean": ratios.means, "seq_max": ratios.maxima}[scope]
        statistic = ratios.spread(over(statistic))
    if estimator != "k1":
        return Judged(name, statistic, None, bounds.upper)
    lower = 1 / bounds.upper if bounds.lower is None else bounds.lower
    return Judged(name, statistic, math.log(lower), math.log(bounds.upper))


def _estimate(estimator: str, d: Tensor) -> Tensor:
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d**2 / 2
    return torch.expm1(d) - d
